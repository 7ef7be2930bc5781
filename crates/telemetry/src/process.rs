//! What this process used so far, read from the kernel.

/// CPU time and memory of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProcessUse {
    pub cpu_user_us: u64,
    pub cpu_system_us: u64,
    pub resident_bytes: u64,
    pub threads: u64,
}

impl ProcessUse {
    /// The figures of this moment; zero where the kernel does not tell.
    pub fn now() -> Self {
        // SAFETY: getrusage writes a whole rusage into the zeroed struct that we own.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        let micros = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
        Self {
            cpu_user_us: micros(usage.ru_utime),
            cpu_system_us: micros(usage.ru_stime),
            resident_bytes: resident_pages().unwrap_or(0) * 4096,
            threads: threads().unwrap_or(0),
        }
    }
}

fn resident_pages() -> Option<u64> {
    std::fs::read_to_string("/proc/self/statm").ok()?.split_whitespace().nth(1)?.parse().ok()
}

/// The 20th field of the line, behind the name in parentheses, which may have blanks.
fn threads() -> Option<u64> {
    let line = std::fs::read_to_string("/proc/self/stat").ok()?;
    line.rsplit_once(')')?.1.split_whitespace().nth(17)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_process_has_memory() {
        let used = ProcessUse::now();
        assert!(used.resident_bytes > 100_000);
        assert!((1..10_000).contains(&used.threads), "{used:?}");
    }
}
