//! Appends whose publish is answered by nobody, and is done later, or never.
use crate::changes::SetAttributes;
use crate::connect::Client;
use crate::fake::{Fake, FakeCluster};
use crate::file_writer::WriteOptions;
use crate::handle::FileHandle;
use crate::handle::file_data::By;
use crate::net::{LocalCall, LocalServers};
use cairn_env::buf::SharedBuf;
use cairn_env::{FastRng, Rng};
use cairn_rpc::{CallError, Unknown};
use cairn_types::Scheme;
use cairn_wire::Opcode;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// What happens to a call to a partition.
#[derive(Clone, Copy, Default, PartialEq)]
enum Way {
    #[default]
    Answered,
    /// Publishes arrive, and are looked at later.
    PublishesLate,
    /// The publish that is sent next comes after those that were sent before.
    Behind,
    /// Nothing arrives.
    Away,
}

/// Servers that stand still, with what was sent to them.
struct Standing {
    servers: Arc<Fake>,
    way: Mutex<Way>,
    waiting: Mutex<Vec<(String, u16, Vec<u8>)>>,
}

const FOREVER: Duration = Duration::from_secs(60);

impl Standing {
    /// They look at what was sent to them.
    async fn go_on(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for (address, opcode, message) in waiting {
            let _nobody_waits = self.servers.call(&address, opcode, &message, &[], FOREVER).await;
        }
    }
    fn now(&self, way: Way) {
        *self.way.lock() = way;
    }
}

impl LocalServers for Standing {
    fn call(&self, address: &str, opcode: u16, message: &[u8], payload: &[u8], deadline: Duration) -> LocalCall {
        let publish = [Opcode::Publish.code(), Opcode::PublishAttributes.code()].contains(&opcode);
        let way = *self.way.lock();
        let lost = match way {
            Way::Answered => false,
            Way::PublishesLate => publish,
            Way::Away => matches!(opcode >> 8, 0x04 | 0x05),
            Way::Behind if publish => {
                self.now(Way::Answered);
                let waiting = std::mem::take(&mut *self.waiting.lock());
                for (address, opcode, message) in waiting {
                    drop(self.servers.call(&address, opcode, &message, &[], FOREVER));
                }
                false
            }
            Way::Behind => false,
        };
        if !lost {
            return self.servers.call(address, opcode, message, payload, deadline);
        }
        if publish && way == Way::PublishesLate {
            self.waiting.lock().push((address.to_owned(), opcode, message.to_vec()));
        }
        let addr = address.to_owned();
        Box::pin(async move {
            tokio::time::sleep(deadline).await;
            Err(CallError::Unknown { addr, cause: Unknown::Deadline })
        })
    }
}

/// A file that two clients have open, of which one's servers may stand still.
struct Two {
    cluster: FakeCluster,
    servers: Arc<Standing>,
    _clients: [Client; 2],
    own: FileHandle,
    other: FileHandle,
}

impl Two {
    async fn start(layout: &str) -> Two {
        let rs = Scheme::Erasure { k: 3, m: 2 };
        let cluster = FakeCluster::local(5, &[Scheme::Replicated(3), rs, rs]);
        let servers =
            Arc::new(Standing { servers: cluster.fake.clone(), way: Mutex::default(), waiting: Mutex::default() });
        let clients = [cluster.connect_through(servers.clone()).await, cluster.connect_local().await];
        let volume = clients[0].volume("default").await.expect("the volume");
        let layout = layout.parse().expect("a layout");
        let options = WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None };
        volume.write(b"/f", options).await.expect("begun").finish().await.expect("made");
        let own = volume.open(b"/f").await.expect("opened");
        let other = clients[1].volume("default").await.expect("the volume").open(b"/f").await.expect("opened");
        Two { cluster, servers, _clients: clients, own, other }
    }
    /// One that has appended and was not answered.
    async fn in_doubt(layout: &str) -> Two {
        let mut two = Two::start(layout).await;
        two.own.append(&[1; 100]).await.expect("appended");
        two.servers.now(Way::PublishesLate);
        assert!(two.own.sync().await.expect_err("nobody answers").is_unknown());
        two.servers.now(Way::Answered);
        two
    }
    async fn other_appends(&mut self, data: &[u8]) {
        self.other.append(data).await.expect("appended");
        self.other.sync().await.expect("synced");
    }
    async fn check(mut self, expected: &[&[u8]]) {
        self.own.sync().await.expect("synced");
        assert!(self.own.data.state.lock().doubt.is_none() && self.own.data.is_clean());
        for handle in [&mut self.own, &mut self.other] {
            let found = handle.read_at(0, 1 << 24).await.expect("read");
            let (found, expected) = (runs(&found), runs(&expected.concat()));
            assert_eq!(found, expected);
        }
        self.own.close().await.expect("closed");
        self.other.close().await.expect("closed");
        self.cluster.check_namespace();
    }
}

/// What a failed test shows.
fn runs(bytes: &[u8]) -> Vec<(u8, usize)> {
    bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

/// A log would have a record twice that was written, and synced again after servers stood still.
#[tokio::test(start_paused = true)]
async fn what_was_done_without_an_answer_is_there_once() {
    for layout in ["r3", "rs-3-2/4k"] {
        let mut two = Two::in_doubt(layout).await;
        two.servers.go_on().await;
        two.other_appends(&[2; 50]).await;
        two.own.append(&[3; 30]).await.expect("appended");
        two.check(&[&[1; 100], &[2; 50], &[3; 30]]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_never_done_is_appended_behind_others() {
    let mut two = Two::in_doubt("r3").await;
    two.other_appends(&[2; 50]).await;
    two.servers.go_on().await;
    two.check(&[&[2; 50], &[1; 100]]).await;
}

/// The publish of before is done between the question for the version and the next publish.
#[tokio::test(start_paused = true)]
async fn what_is_done_while_it_is_sent_again_is_there_once() {
    let mut two = Two::in_doubt("r3").await;
    two.servers.now(Way::Behind);
    two.own.append(&[3; 30]).await.expect("appended");
    two.check(&[&[1; 100], &[3; 30]]).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_without_an_answer_one_is_done() {
    let mut two = Two::in_doubt("r3").await;
    two.own.append(&[3; 30]).await.expect("appended");
    two.servers.now(Way::PublishesLate);
    assert!(two.own.sync().await.expect_err("nobody answers").is_unknown());
    two.servers.now(Way::Answered);
    two.servers.go_on().await;
    two.check(&[&[1; 100], &[3; 30]]).await;
}

/// The space in which it lies is not named any more: whoever completes a row writes all of it anew.
#[tokio::test(start_paused = true)]
async fn what_was_moved_meanwhile_is_there_once() {
    let mut two = Two::in_doubt("rs-3-2/4k").await;
    two.servers.go_on().await;
    two.other_appends(&[2; 40_000]).await;
    two.own.append(&[3; 30]).await.expect("appended");
    two.check(&[&[1; 100], &[2; 40_000], &[3; 30]]).await;
}

/// Publishes are lost for long, and everything else is answered.
#[tokio::test(start_paused = true)]
async fn it_ends_however_many_were_lost() {
    let mut two = Two::in_doubt("r3").await;
    two.servers.now(Way::PublishesLate);
    for _ in 0..20 {
        assert!(two.own.sync().await.expect_err("nobody answers").is_unknown());
    }
    two.servers.now(Way::Answered);
    two.check(&[&[1; 100]]).await;
}

/// An own change that tells of a later version than the next would have the bytes moved.
#[tokio::test(start_paused = true)]
async fn an_own_change_behind_it_does_not_move_it() {
    let two = Two::in_doubt("r3").await;
    two.servers.go_on().await;
    let set = SetAttributes::to_size(100);
    let volume = two.own.volume.clone();
    let answer = volume.setattr_under(two.own.inode(), b"/f", set, 0).await.expect("set");
    let now = two.own.data.now();
    two.own.data.with(0, |state| state.learn(answer, now, By::Own));
    two.check(&[&[1; 100]]).await;
}

/// A log that somebody cuts while a line is on its way would begin with zeros.
#[tokio::test(start_paused = true)]
async fn what_is_appended_to_a_file_that_is_cut_is_at_its_end() {
    for size in [0, 40] {
        let mut two = Two::start("r3").await;
        two.own.append(&[1; 100]).await.expect("appended");
        two.own.sync().await.expect("synced");
        two.own.append(&[2; 10]).await.expect("appended");
        two.other.truncate(size).await.expect("cut");
        two.check(&[&vec![1; size as usize], &[2; 10]]).await;
    }
    // What was written beyond the end is no end.
    let mut two = Two::start("r3").await;
    two.own.write_at(50, &[1; 50]).await.expect("written");
    two.own.budget.reserve(10).await;
    two.own.data.append(two.own.writer(), SharedBuf::from_owner(vec![2; 10])).expect("appended");
    two.own.data.refresh().await.expect("asked");
    two.check(&[&[0; 50], &[1; 50], &[2; 10]]).await;
}

/// Whoever reads, or stats, in between would move what is in doubt.
#[tokio::test(start_paused = true)]
async fn a_look_in_between_settles_it() {
    let mut two = Two::in_doubt("r3").await;
    two.servers.go_on().await;
    two.other_appends(&[2; 50]).await;
    let found = two.own.data.refresh().await.expect("asked");
    assert_eq!(found.size, 150);
    assert!(two.own.data.is_clean(), "it is known to be done");
    two.check(&[&[1; 100], &[2; 50]]).await;
}

#[tokio::test(start_paused = true)]
async fn what_others_wrote_over_it_stays() {
    let mut two = Two::in_doubt("r3").await;
    two.servers.go_on().await;
    two.other.write_at(10, &[9; 10]).await.expect("written");
    two.other.sync().await.expect("synced");
    two.check(&[&[1; 10], &[9; 10], &[1; 80]]).await;
}

/// And what others wrote beside that stays.
#[tokio::test(start_paused = true)]
async fn what_is_written_over_it_is_not_lost() {
    let mut two = Two::in_doubt("r3").await;
    two.own.write_at(10, &[9; 10]).await.expect("written");
    two.servers.go_on().await;
    two.other.write_at(40, &[8; 10]).await.expect("written");
    two.other.sync().await.expect("synced");
    two.check(&[&[1; 10], &[9; 10], &[1; 20], &[8; 10], &[1; 50]]).await;
}

/// A file that is cut to nothing has nothing in doubt.
#[tokio::test(start_paused = true)]
async fn what_is_cut_off_is_not_in_doubt() {
    let mut two = Two::in_doubt("r3").await;
    two.own.data.truncate(&two.own.volume, SetAttributes::to_size(0)).await.expect("cut");
    two.servers.go_on().await;
    two.own.append(&[3; 30]).await.expect("appended");
    two.check(&[&[3; 30]]).await;
}

/// Records of two who append, whatever their servers do: each is there once, and those of one in their order.
#[tokio::test(start_paused = true)]
async fn every_record_is_there_once() {
    for seed in 0..100 {
        let rng = FastRng::seeded(seed);
        let layout = if seed % 3 == 0 { "rs-3-2/4k" } else { "r3" };
        let mut two = Two::start(layout).await;
        let mut counts = [0u8; 2];
        let record = |who: u8, number: u8| vec![who * 100 + number; 40 + usize::from(number) * 1007];
        for _ in 0..30 {
            match rng.below(8) {
                0 | 1 => {
                    // Who is asked for the end of the file may be away.
                    counts[0] += u8::from(two.own.append(&record(0, counts[0])).await.is_ok());
                }
                2 => {
                    two.other_appends(&record(1, counts[1])).await;
                    counts[1] += 1;
                }
                3 => two.servers.now([Way::PublishesLate, Way::Behind, Way::Away][rng.below(3) as usize]),
                4 => two.servers.now(Way::Answered),
                5 => two.servers.go_on().await,
                6 => drop(two.own.data.refresh().await),
                _ => drop(two.own.sync().await),
            }
        }
        two.servers.now(Way::Answered);
        if rng.below(2) == 0 {
            two.servers.go_on().await;
        }
        two.own.sync().await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let found = two.other.read_at(0, 1 << 24).await.expect("read");
        for who in 0..2u8 {
            let own: Vec<(u8, usize)> = runs(&found).into_iter().filter(|(byte, _)| byte / 100 == who).collect();
            let all: Vec<Vec<u8>> = (0..counts[usize::from(who)]).map(|number| record(who, number)).collect();
            assert_eq!(own, runs(&all.concat()), "seed {seed}");
        }
        let bytes = (0..2u8).flat_map(|who| (0..counts[usize::from(who)]).map(move |number| record(who, number).len()));
        assert_eq!(found.len(), bytes.sum::<usize>(), "seed {seed}");
        two.own.close().await.expect("closed");
        two.other.close().await.expect("closed");
        two.cluster.check_namespace();
    }
}
