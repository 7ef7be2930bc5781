//! Structured logs on standard error, as text for people or JSON lines for machines.
use std::str::FromStr;
use tracing_subscriber::EnvFilter;

/// How a log line looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

impl FromStr for LogFormat {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("{text:?} is no log format; there are text and json")),
        }
    }
}

/// Settings of the log.
#[derive(Clone, Debug)]
pub struct LogConfig {
    pub format: LogFormat,
    /// As in `RUST_LOG`: `info`, `cairn_data=debug,info`.
    pub filter: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".into() }
    }
}

/// Installs the process-wide log. A second call changes nothing.
pub fn init_logging(config: &LogConfig) -> Result<(), String> {
    let filter = EnvFilter::try_new(&config.filter)
        .map_err(|e| format!("log filter {:?}: {e}; write a level (info) or target=level pairs", config.filter))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error here means that a log is installed already, which is what was asked for.
    let _already = match config.format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_is_refused_with_its_text() {
        let config = LogConfig { filter: "a=b=c".into(), ..Default::default() };
        assert!(init_logging(&config).is_err_and(|e| e.contains("a=b=c")));
        assert!("xml".parse::<LogFormat>().is_err());
    }
}
