//! [`Settings`]: those of the cluster that nodes go by, as the manager tells them with its answers to heartbeats.
//!
//! The manager checks values before it stores them; what cannot be read here, or is not told by an older manager, is as
//! if it was not set, and a role keeps what it had. Not here: their table with defaults and meanings (manager-core).

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_types::ByteCount;
use cairn_wire::manager::ConfigItem;

/// Settings by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// From the message.
    pub fn new(items: &[ConfigItem]) -> Self {
        Self(items.iter().map(|item| (item.key.clone(), item.value.clone())).collect())
    }

    /// The text, if it was told.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// A duration: `300ms`, `10s`, `15m`, `2h`.
    pub fn duration(&self, key: &str) -> Option<Duration> {
        let text = self.text(key)?;
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        digits.parse::<u64>().ok()?.checked_mul(unit).map(Duration::from_millis)
    }

    /// A whole number, or a size in bytes.
    pub fn number(&self, key: &str) -> Option<u64> {
        let text = self.text(key)?;
        text.parse().ok().or_else(|| text.parse::<ByteCount>().ok().map(|size| size.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A role would go by something that nobody set.
    #[test]
    fn values_are_read_as_the_manager_writes_them() {
        let items = [("a", "300ms"), ("b", "2h"), ("c", "1g"), ("d", "17"), ("e", "soon")];
        let item =
            |(key, value): (&str, &str)| ConfigItem { key: key.into(), value: value.into(), ..Default::default() };
        let settings = Settings::new(&items.map(item));
        assert_eq!(settings.duration("a"), Some(Duration::from_millis(300)));
        assert_eq!(settings.duration("b"), Some(Duration::from_secs(7200)));
        assert_eq!(settings.number("c"), Some(1 << 30));
        assert_eq!(settings.number("d"), Some(17));
        assert_eq!((settings.duration("e"), settings.number("e"), settings.duration("none")), (None, None, None));
    }
}
