//! Tests of writers that are shut out: two clients with a file, of which one takes it over from the other.
use super::*;
use crate::connect::Client;
use crate::fake::FakeCluster;
use crate::file_writer::WriteOptions;
use cairn_types::{ErrorCode, Layout, Scheme};

const MARK: &[u8] = b"user.mark";

struct Two {
    cluster: FakeCluster,
    _clients: [Client; 2],
    old: FileHandle,
    heir: FileHandle,
    generation: u64,
}

impl Two {
    async fn start() -> Two {
        let cluster = FakeCluster::start(3, &[Scheme::Replicated(3)]);
        let clients = [cluster.connect().await, cluster.connect().await];
        let first = clients[0].volume("default").await.expect("the volume");
        let layout = Layout::replicated(3);
        let options = WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None };
        first.write(b"/f", options).await.expect("begun").finish().await.expect("made");
        let old = first.open(b"/f").await.expect("opened");
        let heir = clients[1].volume("default").await.expect("the volume").open(b"/f").await.expect("opened");
        let generation = old.data.guard(&old.volume, MARK, false).await.expect("guarded");
        Two { cluster, _clients: clients, old, heir, generation }
    }
    /// The old writer writes, at an offset or behind the end.
    async fn write(&self, at: Option<u64>, data: &[u8]) -> Result<()> {
        let data = SharedBuf::from_owner(data.to_vec());
        self.old.budget.reserve(data.len()).await;
        let by = Writer { volume: &self.old.volume, mtime_ns: 0, generation: self.generation };
        match at {
            Some(at) => self.old.data.write(by, at, data),
            None => self.old.data.append(by, data).map(|_| ()),
        }
    }
    /// The heir shuts the old writer out and appends.
    async fn take_over(&mut self, mark: &[u8]) {
        self.heir.volume.shut_out(self.old.inode(), b"/f", MARK, mark).await.expect("shut out");
        self.heir.append(&[b'C'; 70]).await.expect("appended");
        self.heir.sync().await.expect("synced");
    }
    async fn check(self, expected: &[&[u8]]) {
        let found = self.heir.read_at(0, 1 << 20).await.expect("read");
        assert!(found == expected.concat(), "{} bytes: {:?}", found.len(), String::from_utf8_lossy(&found));
        assert!(self.old.data.is_clean(), "something of the old writer waits");
        self.old.close().await.expect("closed");
        self.heir.close().await.expect("closed");
        self.cluster.check_namespace();
    }
}

fn is_shut_out<T>(outcome: Result<T>) -> bool {
    outcome.is_err_and(|error| error.code() == Some(ErrorCode::Stale))
}

/// What the heir was told to be durable would be overwritten by what the old writer still had, whether he publishes it
/// himself, or the background does, and whatever he knows of the file by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_an_old_writer_comes_after_he_was_shut_out() {
    for (way, at) in (0..4).flat_map(|way| [(way, Some(100)), (way, None)]) {
        let mut two = Two::start().await;
        two.write(Some(0), &[b'A'; 100]).await.expect("written");
        two.old.data.flush().await.expect("flushed");
        two.write(at, &[b'B'; 50]).await.expect("written");
        if way == 1 {
            // On its way when he is shut out.
            two.old.data.write_all_behind();
        }
        two.take_over(b"1").await;
        match way {
            0 => assert!(is_shut_out(two.old.data.flush().await), "a flush was acknowledged"),
            1 => assert!(is_shut_out(two.old.data.publish_flights().await), "it was published behind"),
            2 => {
                // He has seen what the heir did.
                two.old.data.refresh().await.expect("asked");
                assert!(is_shut_out(two.old.data.flush().await), "a flush was acknowledged");
            }
            _ => assert!(is_shut_out(two.old.data.show().await), "a close was acknowledged"),
        }
        assert!(is_shut_out(two.write(at, b"late").await), "he goes on writing");
        assert!(two.old.data.is_shut_out(two.generation));
        two.check(&[&[b'A'; 100], &[b'C'; 70]]).await;
    }
}

/// The same where both have the file open through one connection, whose handles share what was written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_heir_of_the_same_connection_gets_nothing_of_the_old_writer() {
    let mut two = Two::start().await;
    two.write(Some(0), &[b'A'; 100]).await.expect("written");
    two.old.data.flush().await.expect("flushed");
    two.write(Some(100), &[b'B'; 50]).await.expect("written");
    two.take_over(b"1").await;
    let (data, volume) = (two.old.data.clone(), two.old.volume.clone());
    let next = data.guard(&volume, MARK, false).await.expect("guarded");
    assert!(next > two.generation && data.is_shut_out(two.generation) && !data.is_shut_out(next));
    assert!(is_shut_out(two.write(Some(100), b"late").await));
    data.refresh().await.expect("asked");
    two.old.budget.reserve(5).await;
    let by = Writer { volume: &volume, mtime_ns: 0, generation: next };
    data.append(by, SharedBuf::from_owner(b"again".to_vec())).expect("appended");
    data.flush().await.expect("flushed");
    two.check(&[&[b'A'; 100], &[b'C'; 70], b"again"]).await;
}

/// Whoever appends beside others, or whose file is converted, would be taken for shut out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_shut_out_goes_on_beside_others() {
    let mut two = Two::start().await;
    for round in 0..5 {
        two.write(None, &[b'A'; 10]).await.expect("written");
        two.heir.append(&[b'C'; 10]).await.expect("appended");
        two.heir.sync().await.expect("synced");
        two.old.data.flush().await.unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    let one: &[u8] = b"CCCCCCCCCCAAAAAAAAAA";
    two.check(&[one; 5]).await;
}

/// A writer who was told that his bytes are in the file would not find them, because he was shut out at that moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_before_what_the_heir_adds() {
    for round in 0..20u64 {
        let mut two = Two::start().await;
        let (old, volume, generation) = (two.old.data.clone(), two.old.volume.clone(), two.generation);
        let budget = two.old.budget.clone();
        let writer = tokio::spawn(async move {
            let mut acknowledged = 0u64;
            loop {
                budget.reserve(10).await;
                let by = Writer { volume: &volume, mtime_ns: 0, generation };
                let written = old.write(by, acknowledged * 10, SharedBuf::from_owner(vec![b'A'; 10]));
                match written.and(old.flush().await) {
                    Ok(()) if old.is_shut_out(generation) => return acknowledged,
                    Ok(()) => acknowledged += 1,
                    Err(error) => {
                        assert_eq!(error.code(), Some(ErrorCode::Stale), "{error}");
                        return acknowledged;
                    }
                }
            }
        });
        tokio::time::sleep(std::time::Duration::from_millis(1 + round % 7)).await;
        two.take_over(b"1").await;
        let acknowledged = writer.await.expect("ended") as usize;
        let found = two.heir.read_at(0, 1 << 20).await.expect("read");
        let own = found.len() - 70;
        assert!(own >= acknowledged * 10, "{acknowledged} were acknowledged, {own} bytes are there");
        assert!(found[..own].iter().all(|byte| *byte == b'A') && found[own..].iter().all(|byte| *byte == b'C'));
        let expected = [vec![b'A'; own], vec![b'C'; 70]].concat();
        two.check(&[&expected]).await;
    }
}
