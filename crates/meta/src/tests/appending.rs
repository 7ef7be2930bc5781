//! Open appends that nobody publishes: a data node is asked to look after them, as long as a member leads.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_meta_core::APPENDING_LEVEL;
use cairn_wire::Opcode;
use cairn_wire::data::TendAppendRequest;
use cairn_wire::meta::{OpenAppendRequest, OpenAppendResponse, PublishAppendRequest};

use super::fixture::{Caller, Cluster, DataNode, PG, VOLUME, eventually, quick};
use crate::MetaTimings;

const WRITER: u64 = 9;
const BLOCK: u64 = 4096;

fn timings() -> MetaTimings {
    MetaTimings {
        append_tick: Duration::from_millis(10),
        append_silent: Duration::from_millis(50),
        append_idle: Duration::from_secs(3600),
        ..quick()
    }
}

fn knows_the_list(cluster: &Cluster) {
    let partitions = cluster.meta(cluster.leader()).partitions();
    let level = || {
        let partitions = partitions.read();
        partitions.values().map(|partition| partition.state.namespace.read().feature_level()).min()
    };
    eventually("the feature level", || level() >= Some(u32::from(APPENDING_LEVEL)));
}

fn open(writer: &mut Caller, inode: u64, after: u64) {
    let (index, header) = (20 + after as u32, Some(writer.header()));
    let request = OpenAppendRequest { header, inode, after, pg: PG, index, creation_epoch: 1, lane: 0 };
    let opened: OpenAppendResponse = writer.call(Opcode::OpenAppend, &request).expect("opened");
    assert!(opened.append.is_some_and(|append| append.open && append.number == after + 1));
}

fn publish(writer: &mut Caller, opcode: Opcode, inode: u64, (number, to): (u64, u64)) {
    let request = PublishAppendRequest { header: Some(writer.header()), inode, number, to, ..Default::default() };
    writer.call::<OpenAppendResponse>(opcode, &request).expect("published");
}

fn tended(data: &DataNode, inode: u64) -> Vec<TendAppendRequest> {
    data.take_tended().into_iter().filter(|asked| asked.inode == inode).collect()
}

/// What dead writers left would never be visible; or one that publishes all the time, or is closed, be closed again and
/// again.
#[test]
fn appends_of_which_nothing_is_published_are_looked_after() {
    let data: Vec<DataNode> = (0..2).map(|_| DataNode::start()).collect();
    let mut cluster = Cluster::with(1, timings(), |config| config);
    cluster.add_pg(&data.iter().collect::<Vec<_>>());
    let mut writer = cluster.caller(WRITER);
    knows_the_list(&cluster);
    let (silent, closed) = (writer.create_with_chunks("silent", 1), writer.create_with_chunks("closed", 1));
    open(&mut writer, closed, 0);
    publish(&mut writer, Opcode::CloseAppend, closed, (1, 0));
    data[0].take_tended();
    data[1].refuse(true);
    open(&mut writer, silent, 0);
    // Again and again, less and less often: perhaps it cannot be closed at the moment.
    let mut asked = Vec::new();
    eventually("two requests", || {
        asked.extend(data[0].take_tended());
        asked.len() >= 2
    });
    let expected = TendAppendRequest { volume: VOLUME, inode: silent, number: 1, idle: false };
    assert!(asked.iter().all(|one| *one == expected), "{asked:?}");
    // The other node is asked when this one refuses.
    data[0].refuse(true);
    data[1].refuse(false);
    eventually("the other one", || !tended(&data[1], silent).is_empty());
    publish(&mut writer, Opcode::CloseAppend, silent, (1, BLOCK));
    eventually("the end", || {
        data[1].take_tended();
        std::thread::sleep(Duration::from_millis(150));
        data[1].take_tended().is_empty()
    });
    assert_eq!(cluster.meta(0).stats().appends_ended.load(Ordering::SeqCst), 0, "nobody said that it closed one");
}

/// A chunk would stay open for ever when nobody writes any more.
#[test]
fn idle_appends_are_closed() {
    let data = DataNode::start();
    let timings = MetaTimings { append_idle: Duration::from_millis(200), ..timings() };
    let mut cluster = Cluster::with(3, timings, |config| config);
    cluster.add_pg(&[&data]);
    let mut writer = cluster.caller(WRITER);
    knows_the_list(&cluster);
    let idle = writer.create_with_chunks("idle", 1);
    open(&mut writer, idle, 0);
    let idle_asked = |data: &DataNode| tended(data, idle).iter().any(|asked| asked.idle);
    eventually("the end of the time", || idle_asked(&data));
    // The next leader begins anew, with the same list.
    let leader = cluster.leader();
    cluster.kill(leader);
    cluster.leader();
    data.take_tended();
    eventually("the end of the time again", || idle_asked(&data));
    // It is counted behind the answer, by the one of the others who asked.
    let ended = |i: usize| cluster.meta(i).stats().appends_ended.load(Ordering::SeqCst);
    eventually("an append that is counted as ended", || (0..3).any(|i| i != leader && ended(i) > 0));
}
