//! How long bytes are sent again, in chunk after chunk, before their writer is told that it does not work: for the
//! cluster's patience, with growing pauses.
use crate::net::NetError;
use cairn_types::{ErrorCode, Time};
use std::time::Duration;

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Failures of one segment or row group so far.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Retry {
    first: Option<Time>,
    times: u32,
    /// It was refused as malformed: no other chunk takes it either.
    hopeless: bool,
}

impl Retry {
    /// The chunk that it was in failed.
    pub(crate) fn failed(&mut self, now: Time, error: &NetError) {
        self.first.get_or_insert(now);
        self.times += 1;
        self.hopeless |= matches!(error, NetError::Remote(error) if error.code == ErrorCode::BadRequest);
    }
    /// It has failed for longer than the patience.
    pub(crate) fn is_over(&self, now: Time, patience: Duration) -> bool {
        self.hopeless || self.first.is_some_and(|first| now.since(first) > patience)
    }
    /// Before the next chunk is opened for it: nothing after the first failure, which is that of one member.
    pub(crate) fn pause(&self) -> Duration {
        match self.times {
            0 | 1 => Duration::ZERO,
            times => (PAUSE_MIN * (1 << (times - 2).min(10))).min(PAUSE_MAX),
        }
    }
    /// No other chunk takes it either.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.hopeless
    }
    /// For the text of an error.
    pub(crate) fn times(&self) -> u32 {
        self.times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use crate::fake::FakeCluster;
    use crate::file_writer::WriteOptions;
    use cairn_env::buf::SharedBuf;
    use cairn_types::Scheme;
    use cairn_wire::error::WireError;

    async fn write_for(patience: Duration, failures: u32) -> (FakeCluster, Result<()>) {
        let cluster = FakeCluster::start(3, &[Scheme::Replicated(3); 2]);
        let client = cluster.connect_for(patience).await;
        let volume = client.volume("default").await.expect("the volume");
        cluster.fake.state.lock().flaky = failures;
        let layout = "r3".parse().expect("a layout");
        let options = WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None };
        let mut writer = volume.write(b"/f", options).await.expect("begun");
        let written = match writer.push(SharedBuf::from_owner(vec![7; 300_000])).await {
            Ok(()) => writer.finish().await.map(|_| ()),
            Err(error) => Err(error),
        };
        (cluster, written)
    }

    /// Quick failures, however many, would end a write long before its patience.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_quick_failures_are_waited_out() {
        let (cluster, written) = write_for(Duration::from_secs(60), 10).await;
        written.expect("the member answers again");
        let flaked = cluster.fake.state.lock().flaked;
        assert!(flaked >= 10, "{flaked} failures");
    }

    /// A member that never answers again would hold its writer for ever.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_patience_of_a_write_ends() {
        let begun = std::time::Instant::now();
        let (cluster, written) = write_for(Duration::from_secs(5), u32::MAX).await;
        let error = written.expect_err("nothing was written").to_string();
        assert!(error.contains("does not answer"), "{error}");
        assert!(begun.elapsed() >= Duration::from_secs(5), "its patience had not ended");
        assert!(cluster.fake.state.lock().flaked > 4);
    }

    /// Writers would give up in a moment, or hammer a cluster that needs one.
    #[test]
    fn time_counts_and_pauses_grow() {
        let mut retry = Retry::default();
        assert_eq!(retry.pause(), Duration::ZERO);
        let start = Time::default();
        let away = NetError::NotSent("away".into());
        retry.failed(start, &away);
        assert_eq!(retry.pause(), Duration::ZERO);
        (0..20).for_each(|_| retry.failed(start, &away));
        assert_eq!(retry.pause(), PAUSE_MAX);
        let patience = Duration::from_secs(30);
        assert!(!retry.is_over(start + patience, patience));
        assert!(retry.is_over(start + patience + Duration::from_millis(1), patience));
        let mut malformed = Retry::default();
        malformed.failed(start, &NetError::Remote(WireError::new(ErrorCode::BadRequest, "no")));
        assert!(malformed.is_over(start, patience));
    }
}
