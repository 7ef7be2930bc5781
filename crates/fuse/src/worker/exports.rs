//! Whether this machine's kernel serves NFS, through which the mount may be exported. Its clients repeat what a server
//! did not answer, and nothing that it did: so what is answered has to be durable, also the names. While it serves, the
//! mount leads no directory, unless its options say that it does.
use cairn_vfs::Vfs;
use std::time::Duration;

/// Statistics of the kernel's server, in the network of this process and in that of the machine. They are there when it
/// was ever started.
const SERVER: [&str; 2] = ["/proc/net/rpc/nfsd", "/proc/1/net/rpc/nfsd"];
/// Looked at so often. Whoever exports something needs longer until a client has mounted it.
const EVERY: Duration = Duration::from_secs(1);

/// Heeds it from now on, and before anything is led.
pub(super) fn heed(vfs: &Vfs) {
    let (vfs, mut serves) = (vfs.clone(), false);
    let mut look = move || {
        let before = std::mem::replace(&mut serves, kernel_serves());
        if serves != before {
            tracing::info!(
                serves,
                "the kernel's NFS server decides whether the mount leads directories: not while it serves"
            );
            vfs.rest_leading(serves);
        }
    };
    look();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(EVERY).await;
            look();
        }
    });
}

fn kernel_serves() -> bool {
    SERVER.iter().any(|path| std::fs::read_to_string(path).is_ok_and(|text| has_threads(&text)))
}

/// Whether it runs, by its statistics.
fn has_threads(text: &str) -> bool {
    let threads = text.lines().find_map(|line| line.strip_prefix("th "));
    threads.and_then(|threads| threads.split(' ').next()?.parse::<u64>().ok()).is_some_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients of the server would lose names that they were told of; or the mount lead nothing because it once ran.
    #[test]
    fn a_server_serves_while_it_has_threads() {
        let text = |threads: u32| {
            format!("rc 0 0 0\nfh 0 0 0 0 0\nio 0 0\nth {threads} 0 0.000 0.000\nra 32 0\nnet 0 0 0 0\nrpc 0 0 0 0 0\n")
        };
        assert!(has_threads(&text(8)) && !has_threads(&text(0)));
        assert!(!has_threads("") && !has_threads("rc 0 0 0\nth\n"));
    }
}
