//! Ctrl-C: a benchmark removes what it wrote at its end, so one that does not come to its end says where that is.
use parking_lot::Mutex;

/// Exit code of what a person ended.
const INTERRUPTED: i32 = 130;

static WRITES_TO: Mutex<Option<String>> = Mutex::new(None);

/// The benchmark writes below this path.
pub(crate) fn writes_to(path: &str) {
    *WRITES_TO.lock() = Some(path.to_owned());
}

/// Ends the process at the first signal, with a word.
pub(crate) fn listen() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        });
        eprintln!("{}", text(WRITES_TO.lock().as_deref()));
        std::process::exit(INTERRUPTED);
    })?;
    Ok(())
}

fn text(path: Option<&str>) -> String {
    match path {
        Some(path) => {
            format!("cairn bench: interrupted; what it wrote is still there: cairn fs rm -r --skip-trash {path}")
        }
        None => "cairn bench: interrupted".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    /// Gigabytes would stay under a name that listings do not show.
    #[test]
    fn who_ends_a_benchmark_is_told_what_stays() {
        let told = super::text(Some("/.bench-io-7"));
        assert!(told.ends_with("cairn fs rm -r --skip-trash /.bench-io-7"), "{told}");
        assert!(!super::text(None).contains("rm -r"));
    }
}
