//! Writers and readers of records against a cluster in memory, whose primaries fail as a test says.
use super::chunk::{AppendChunk, Asks, PUBLISHABLE};
use super::*;
use crate::changes::NewFile;
use crate::connect::Client;
use crate::fake::FakeCluster;
use crate::fake::records::RecordFault;
use cairn_types::Scheme;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const FILE: &[u8] = b"/f";
const BLOCK: u64 = 4096;

async fn start() -> (FakeCluster, Client, Volume) {
    start_with(4).await
}

async fn start_with(disks: u32) -> (FakeCluster, Client, Volume) {
    let cluster = FakeCluster::local(disks, &[Scheme::Replicated(3); 3]);
    let client = cluster.connect_local().await;
    let volume = client.volume("default").await.expect("the volume");
    let request = NewFile { mode: 0o100_644, ..NewFile::default() };
    volume.create(FILE, request).await.expect("a file");
    (cluster, client, volume)
}

/// All bytes follow from the writer and its number.
fn record(writer: usize, number: usize) -> Vec<u8> {
    let mut bytes = format!("{writer} {number} ").into_bytes();
    bytes.extend((0..(number * 37 + writer * 11) % 3000).map(|i| (i + number) as u8));
    bytes
}

async fn appender(volume: &Volume, level: RecordLevel) -> RecordAppender {
    volume.record_appender(FILE, RecordOptions { level, ..RecordOptions::default() }).await.expect("an appender")
}

/// Each writer appends so many records.
async fn append_all(volume: &Volume, level: RecordLevel, writers: usize, each: usize) {
    let tasks = (0..writers).map(|writer| {
        let volume = volume.clone();
        tokio::spawn(async move {
            let appender = appender(&volume, level).await;
            let mut under_way = VecDeque::new();
            for number in 0..each {
                under_way.push_back(appender.append(&record(writer, number)).await.expect("taken"));
                if under_way.len() == 8 {
                    under_way.pop_front().expect("eight").done().await.expect("appended");
                }
            }
            for ticket in under_way {
                ticket.done().await.expect("appended");
            }
            appender.close().await.expect("closed");
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
}

/// Records that are in the file, and how often.
async fn read_all(volume: &Volume) -> BTreeMap<Vec<u8>, u32> {
    let mut found = BTreeMap::new();
    let mut reader = volume.record_reader(FILE, 0, u64::MAX).await.expect("a reader");
    while let Some(record) = reader.next().await.expect("read") {
        *found.entry(record.bytes).or_default() += 1;
    }
    assert_eq!((reader.skipped().damaged, reader.left_over()), (0, 0), "nothing but records and padding");
    found
}

fn check_once(found: &BTreeMap<Vec<u8>, u32>, writers: usize, each: usize, what: &str) {
    for (writer, number) in (0..writers).flat_map(|writer| (0..each).map(move |number| (writer, number))) {
        assert_eq!(found.get(&record(writer, number)), Some(&1), "{what}: record {number} of writer {writer}");
    }
    assert_eq!(found.len(), writers * each, "{what}");
}

/// A record would be lost, there twice, or torn, when it is not known what became of it.
#[tokio::test(start_paused = true)]
async fn records_are_there_once_whatever_fails() {
    use RecordFault::{Late, LostAnswer, OnlyPrimary, Refused, Torn};
    for fault in [LostAnswer, OnlyPrimary, Torn, Refused, Late] {
        for level in [RecordLevel::Memory, RecordLevel::Durable, RecordLevel::Visible] {
            let (cluster, _client, volume) = start().await;
            let faults = [None, None, Some(fault), None, None, None, Some(fault)];
            cluster.fake.state.lock().records.faults = faults.into();
            append_all(&volume, level, 3, 40).await;
            assert_eq!(cluster.fake.state.lock().records.faulty, 2);
            check_once(&read_all(&volume).await, 3, 40, &format!("{fault:?} {level:?}"));
            cluster.check_namespace();
        }
    }
}

/// A record would be taken for appended because it is in the chunk, although the file ends before it: somebody else
/// closed the append, who found less.
#[tokio::test(start_paused = true)]
async fn what_is_beyond_the_end_that_was_logged_is_sent_again() {
    let (cluster, _client, volume) = start().await;
    let appender = appender(&volume, RecordLevel::Durable).await;
    appender.append(&record(0, 0)).await.expect("taken").done().await.expect("appended");
    {
        let mut state = cluster.fake.state.lock();
        state.records.faults = [Some(RecordFault::LostAnswer)].into();
        state.records.closed_below = Some((record(0, 0).len() + cairn_format::record_frame::RECORD_FRAME_LEN) as u64);
    }
    appender.append(&record(0, 1)).await.expect("taken").done().await.expect("appended");
    assert_eq!(cluster.fake.state.lock().records.closed_below, None, "it was closed there");
    appender.close().await.expect("closed");
    check_once(&read_all(&volume).await, 1, 2, "closed below");
}

/// What was only in memory would be lost with all members although its writer lives.
#[tokio::test(start_paused = true)]
async fn records_in_memory_outlive_all_members_with_their_writer() {
    let (cluster, _client, volume) = start().await;
    let appender = appender(&volume, RecordLevel::Memory).await;
    for number in 0..5 {
        appender.append(&record(0, number)).await.expect("taken").done().await.expect("appended");
    }
    assert!(cluster.crash(&[1, 2, 3, 4]) > 0, "something was in memory");
    appender.close().await.expect("closed");
    check_once(&read_all(&volume).await, 1, 5, "crashed");
}

/// Each writer would look at the metadata whenever a chunk is full, or records be lost on the way from one to the next.
#[tokio::test(start_paused = true)]
async fn one_writer_opens_the_next_chunk_for_all() {
    for level in [RecordLevel::Memory, RecordLevel::Durable, RecordLevel::Visible] {
        let (cluster, _client, volume) = start().await;
        cluster.fake.state.lock().records.most = 100_000;
        append_all(&volume, level, 20, 40).await;
        check_once(&read_all(&volume).await, 20, 40, "many chunks");
        let state = cluster.fake.state.lock();
        let calls = |name: &str| state.calls.get(name).copied().unwrap_or(0);
        let (opened, closed, looked) = (calls("OpenAppend"), calls("CloseAppend"), calls("GetAppend"));
        assert!(opened >= 5, "{opened} chunks");
        // By each writer when it begins; then by the one who opens the next chunk.
        assert!(closed == opened - 1 && looked <= 20 + 4 * opened, "{opened} {closed} {looked}");
    }
}

/// The appends of the file's lanes: how many of them are open, and in how many groups the last ones are.
async fn lanes_of(volume: &Volume, most: u32) -> (Vec<u32>, usize, usize) {
    let inode = volume.stat(FILE, true).await.expect("there").inode;
    let (mut used, mut open, mut groups) = (Vec::new(), 0, std::collections::BTreeSet::new());
    for lane in 0..most {
        if let Some(append) = volume.last_append(inode, FILE, lane).await.expect("known").append {
            assert_eq!(append.number >> 56, u64::from(lane));
            used.push(lane);
            open += usize::from(append.open);
            groups.insert(append.pg);
        }
    }
    (used, open, groups.len())
}

/// Records would be lost or doubled when their writer goes to another lane, or many writers share one chunk whatever
/// their primary says.
#[tokio::test(start_paused = true)]
async fn writers_are_spread_over_lanes_and_their_records_are_there_once() {
    use RecordFault::{Late, LostAnswer, OnlyPrimary, Refused, Torn};
    for fault in [None, Some(LostAnswer), Some(OnlyPrimary), Some(Torn), Some(Refused), Some(Late)] {
        for level in [RecordLevel::Memory, RecordLevel::Durable, RecordLevel::Visible] {
            let (cluster, _client, volume) = start().await;
            {
                let mut state = cluster.fake.state.lock();
                state.set_feature_level(14);
                state.records.lanes = 8;
                state.records.faults = [None, fault, None, None, None, fault, None, None, fault].into();
            }
            append_all(&volume, level, 40, 12).await;
            let what = format!("{fault:?} {level:?}");
            check_once(&read_all(&volume).await, 40, 12, &what);
            cluster.check_namespace();
            let (used, _, groups) = lanes_of(&volume, 16).await;
            assert!(used.iter().copied().eq(0..8) && groups > 1, "{what}: {used:?} in {groups} groups");
        }
    }
}

/// What a writer left in a lane in which nobody else writes would stay invisible, or be lost with the members.
#[tokio::test(start_paused = true)]
async fn a_writer_leaves_nothing_behind_in_a_lane() {
    for level in [RecordLevel::Memory, RecordLevel::Durable] {
        let (cluster, _client, volume) = start().await;
        {
            let mut state = cluster.fake.state.lock();
            state.set_feature_level(14);
            state.records.lanes = 8;
        }
        let elsewhere = (1..).find(|writer| lanes::lane_of(*writer, 8) != 0).expect("one of eight");
        let options = RecordOptions { level, writer: Some((elsewhere, 1)), ..RecordOptions::default() };
        let appender = volume.record_appender(FILE, options).await.expect("an appender");
        for number in 0..2 {
            appender.append(&record(0, number)).await.expect("taken").done().await.expect("appended");
        }
        let (used, _, _) = lanes_of(&volume, 8).await;
        assert_eq!(used, [0, lanes::lane_of(elsewhere, 8)], "{level:?}");
        assert_eq!(read_all(&volume).await.get(&record(0, 0)), Some(&1), "{level:?}: it went when that was visible");
        cluster.crash(&[1, 2, 3, 4]);
        appender.close().await.expect("closed");
        check_once(&read_all(&volume).await, 1, 2, &format!("{level:?}"));
    }
}

/// What all writers of an append left would stay invisible, one that is used be closed, or one that nobody needs stay
/// open.
#[tokio::test(start_paused = true)]
async fn appends_without_writers_are_published_and_closed() {
    let (cluster, _client, volume) = start().await;
    let inode = volume.stat(FILE, true).await.expect("there").inode;
    let open = async |number: u64| volume.get_append(inode, FILE, number).await.expect("known").append.expect("one");
    let lone = appender(&volume, RecordLevel::Durable).await;
    lone.append(b"one").await.expect("taken").done().await.expect("appended");
    lone.flush().await.expect("visible");
    let left = volume.tend_append(inode, 1, false).await.expect("looked at");
    assert_eq!((left.closed, left.published), (false, BLOCK), "all of it is visible");
    lone.append(b"two").await.expect("taken").done().await.expect("appended");
    // Its writer is gone before a second is over.
    drop(lone);
    assert_eq!(open(1).await.published, BLOCK);
    let tended = volume.tend_append(inode, 1, false).await.expect("looked at");
    assert_eq!(tended, TendedAppend { closed: true, published: BLOCK + 35 });
    assert_eq!(volume.tend_append(inode, 1, false).await.expect("looked at"), tended);
    assert_eq!(read_all(&volume).await.into_keys().collect::<Vec<_>>(), [b"one", b"two"]);
    // One that lives goes on.
    let lives = appender(&volume, RecordLevel::Durable).await;
    lives.append(b"three").await.expect("taken").done().await.expect("appended");
    lives.flush().await.expect("visible");
    let tended = volume.tend_append(inode, 2, true).await.expect("looked at");
    assert_eq!((tended.closed, tended.published), (true, BLOCK));
    // It looks before it sends: the primary would not answer before somebody tells where the file goes on.
    tokio::time::sleep(Duration::from_secs(31)).await;
    let sent = || cluster.fake.state.lock().calls["RecordAppend"];
    let before = sent();
    lives.append(b"four").await.expect("taken").done().await.expect("appended");
    assert_eq!(sent() - before, 2, "one that tells where the file goes on, and the record");
    // Its primary does not know any more what it has.
    cluster.fake.state.lock().records.faults = [Some(RecordFault::Refused)].into();
    assert!(open(3).await.open);
    lives.close().await.expect("closed");
    assert!(volume.tend_append(inode, 3, true).await.expect("looked at").closed);
    let all: Vec<_> = read_all(&volume).await.into_iter().collect();
    assert_eq!(all.len(), 4, "{all:?}");
    assert!(all.iter().all(|(_, times)| *times == 1));
    // Nothing was ever written to it.
    let number = 4;
    let request = OpenAppendRequest { after: 3, pg: 1, index: 900, creation_epoch: 1, ..Default::default() };
    let opened = volume.open_append(inode, FILE, request).await.expect("opened").append.expect("one");
    assert_eq!((opened.number, opened.open), (number, true));
    let tended = volume.tend_append(inode, number, true).await.expect("looked at");
    assert_eq!(tended, TendedAppend { closed: true, published: 0 });
    cluster.check_namespace();
}

/// A writer would give up, and say that data were lost, because the last block was filled up behind the last record.
#[tokio::test(start_paused = true)]
async fn an_append_may_end_before_the_end_of_what_is_durable() {
    let (_cluster, client, volume) = start().await;
    let appender = appender(&volume, RecordLevel::Durable).await;
    appender.append(b"one").await.expect("taken").done().await.expect("appended");
    let inode = volume.stat(FILE, true).await.expect("there").inode;
    let open = volume.last_append(inode, FILE, 0).await.expect("known").append.expect("open");
    let chunk = AppendChunk::of(inode, &open);
    let answer = chunk
        .send(volume.cluster(), cairn_rpc::Payload::None, Asks { level: PUBLISHABLE, ..Asks::default() }, None)
        .await
        .expect("durable");
    assert_eq!((answer.end, answer.published), (BLOCK, 0), "nobody has published it");
    let settled = settle::settle(&volume, (inode, FILE), chunk, answer.end).await.expect("closed");
    assert_eq!(settled.published, 35, "with its last record");
    appender.append(b"two").await.expect("taken").done().await.expect("appended");
    appender.close().await.expect("closed");
    assert_eq!(read_all(&volume).await.into_keys().collect::<Vec<_>>(), [b"one", b"two"]);
    drop(client);
}

/// The last record before a pause would not be seen before the next one.
#[tokio::test(start_paused = true)]
async fn a_durable_record_is_visible_soon_without_another_one() {
    for level in [RecordLevel::Memory, RecordLevel::Durable] {
        let (_cluster, _client, volume) = start().await;
        let appender = appender(&volume, level).await;
        appender.append(b"one").await.expect("taken").done().await.expect("appended");
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(read_all(&volume).await.len(), 1, "{level:?}");
        drop(appender);
    }
}

/// Records of some length would be refused, torn, or be in another order.
#[tokio::test(start_paused = true)]
async fn records_have_one_byte_to_sixteen_mebibytes() {
    let (cluster, _client, volume) = start().await;
    let appender = appender(&volume, RecordLevel::Durable).await;
    let lengths = [1, 0, 1 << 20, (1 << 20) - 8192 - 32, (1 << 20) - 8192 - 31, 5 << 20, 7, RECORD_MAX, 3];
    cluster.fake.state.lock().records.faults = [None, Some(RecordFault::Torn)].into();
    let bytes = |length: usize| (0..length).map(|i| (i * 7 + length) as u8).collect::<Vec<_>>();
    let mut tickets = Vec::new();
    for length in lengths {
        tickets.push(appender.append(&bytes(length)).await.expect("taken"));
    }
    for ticket in tickets {
        ticket.done().await.expect("appended");
    }
    assert!(appender.append(&vec![0; RECORD_MAX + 1]).await.is_err());
    appender.close().await.expect("closed");
    let mut reader = volume.record_reader(FILE, 0, u64::MAX).await.expect("a reader");
    for length in lengths {
        let record = reader.next().await.expect("read").expect("a record");
        assert!(record.bytes == bytes(length), "{length}");
    }
    assert_eq!(reader.next().await.expect("read"), None);
}

/// A record would be read by two who share a file, or by none; or what the first one reads would be called damage by
/// the second.
#[tokio::test(start_paused = true)]
async fn parts_of_a_file_share_its_records() {
    let (_cluster, _client, volume) = start().await;
    append_all(&volume, RecordLevel::Durable, 2, 30).await;
    let size = volume.stat(FILE, true).await.expect("there").size;
    for parts in [1, 2, 7, 100] {
        let mut seen = BTreeMap::new();
        for part in 0..parts {
            let (from, to) = (size * part / parts, size * (part + 1) / parts);
            let mut reader = volume.record_reader(FILE, from, to).await.expect("a reader");
            while let Some(record) = reader.next().await.expect("read") {
                assert!((from..to).contains(&record.offset));
                *seen.entry(record.bytes).or_default() += 1;
            }
            assert_eq!(reader.skipped().damaged, 0, "part {part} of {parts}");
        }
        check_once(&seen, 2, 30, &format!("{parts} parts"));
    }
}

/// A program that goes on under its number would have its records given out twice, or its new ones kept back.
#[tokio::test(start_paused = true)]
async fn repeats_of_a_writer_that_began_anew_are_not_given_out() {
    let (_cluster, _client, volume) = start().await;
    let appender = async |first| {
        let options = RecordOptions { writer: Some((77, first)), ..RecordOptions::default() };
        volume.record_appender(FILE, options).await.expect("an appender")
    };
    let before = appender(1).await;
    for record in [b"1", b"2", b"3"] {
        before.append(record).await.expect("taken");
    }
    before.close().await.expect("closed");
    // It was killed before it noted that the third one is there.
    let after = appender(3).await;
    for record in [b"3", b"4"] {
        after.append(record).await.expect("taken");
    }
    after.close().await.expect("closed");
    let reader = volume.record_reader(FILE, 0, u64::MAX).await.expect("a reader");
    let mut reader = reader.without_repeats();
    let mut seen = Vec::new();
    while let Some(record) = reader.next().await.expect("read") {
        seen.extend(record.bytes);
    }
    assert_eq!((&seen[..], reader.skipped().repeats), (&b"1234"[..], 1));
    assert_eq!(read_all(&volume).await[&b"3"[..]], 2);
}

/// Whole records would never be read again behind one whose end was cut off; or those that are written after a cut
/// would be passed over by whoever had read further.
#[tokio::test(start_paused = true)]
async fn what_was_cut_off_hides_nothing() {
    let (_cluster, _client, volume) = start().await;
    let append = async |records: &[&[u8]]| {
        let appender = volume.record_appender(FILE, RecordOptions::default()).await.expect("an appender");
        for record in records {
            appender.append(record).await.expect("taken");
        }
        appender.close().await.expect("closed");
    };
    let cut = async |to: u64| {
        let mut handle = volume.open(FILE).await.expect("opened");
        handle.truncate(to).await.expect("cut");
        handle.close().await.expect("closed");
    };
    let mut reader = volume.record_reader(FILE, 0, u64::MAX).await.expect("a reader");
    let read = async |reader: &mut super::RecordReader| {
        let mut seen = Vec::new();
        while let Some(record) = reader.next().await.expect("read") {
            seen.push(record.bytes);
        }
        seen
    };
    append(&[&[7; 100_000]]).await;
    cut(50_000).await;
    assert!(read(&mut reader).await.is_empty());
    assert_eq!(reader.left_over(), 50_000, "its end may still come");
    append(&[b"one", b"two"]).await;
    assert_eq!(read(&mut reader).await, [b"one", b"two"]);
    assert!(reader.skipped().damaged >= 50_000 && !reader.take_cut(), "{:?}", reader.skipped());
    // Of a part that begins inside of it.
    let mut part = volume.record_reader(FILE, 20_000, u64::MAX).await.expect("a reader");
    assert_eq!(read(&mut part).await, [b"one", b"two"]);
    cut(0).await;
    append(&[b"new"]).await;
    assert_eq!(read(&mut reader).await, [b"new"]);
    assert!(reader.take_cut() && !reader.take_cut());
    let size = volume.stat(FILE, true).await.expect("there").size;
    let mut part = volume.record_reader(FILE, size, size + 100).await.expect("a reader");
    cut(0).await;
    assert!(read(&mut part).await.is_empty(), "it has nothing of other parts");
}

fn take_calls(cluster: &FakeCluster) -> BTreeMap<&'static str, u64> {
    std::mem::take(&mut cluster.fake.state.lock().calls)
}

/// So many writers of one client, each with a record that was appended.
async fn many(volume: &Volume, level: RecordLevel, count: usize) -> Vec<RecordAppender> {
    let mut writers = Vec::new();
    for writer in 0..count {
        let appender = appender(volume, level).await;
        appender.append(&record(writer, 0)).await.expect("taken").done().await.expect("appended");
        writers.push(appender);
    }
    writers
}

/// Each of many writers would report, seal, look and read by itself when a server dies, and all of them wait for half a
/// minute.
#[tokio::test(start_paused = true)]
async fn many_writers_find_out_once_what_a_closed_append_left() {
    for (fault, level) in [
        (RecordFault::LostAnswer, RecordLevel::Durable),
        (RecordFault::OnlyPrimary, RecordLevel::Durable),
        (RecordFault::LostAnswer, RecordLevel::Memory),
    ] {
        let (cluster, _client, volume) = start().await;
        let writers = many(&volume, level, 100).await;
        take_calls(&cluster);
        cluster.fake.state.lock().records.faults = [None, Some(fault)].into();
        let mut tickets = Vec::new();
        for (writer, appender) in writers.iter().enumerate() {
            tickets.push(appender.append(&record(writer, 1)).await.expect("taken"));
        }
        for ticket in tickets {
            ticket.done().await.expect("appended");
        }
        let calls = take_calls(&cluster);
        let of = |name: &str| calls.get(name).copied().unwrap_or(0);
        assert_eq!((of("CloseAppend"), of("OpenAppend"), of("Seal")), (1, 1, 3), "{fault:?} {level:?}: {calls:?}");
        let looked = of("Read") + of("GetAppend") + of("ReportMember");
        assert!((1..20).contains(&looked), "{fault:?} {level:?}: {calls:?}");
        for appender in writers {
            appender.close().await.expect("closed");
        }
        check_once(&read_all(&volume).await, 100, 2, &format!("{fault:?} {level:?}"));
    }
}

/// The metadata would be asked each second by each lane, or by each writer that pauses.
#[tokio::test(start_paused = true)]
async fn lanes_of_a_client_are_published_together() {
    for level in [14, 17] {
        let (cluster, _client, volume) = start().await;
        {
            let mut state = cluster.fake.state.lock();
            state.set_feature_level(level);
            state.records.lanes = 8;
        }
        let writers = many(&volume, RecordLevel::Durable, 40).await;
        for (writer, appender) in writers.iter().enumerate() {
            appender.append(&record(writer, 1)).await.expect("taken").done().await.expect("appended");
        }
        assert_eq!(lanes_of(&volume, 16).await.0.len(), 8);
        take_calls(&cluster);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (calls, most) = (take_calls(&cluster), if level == 17 { 3 } else { 24 });
        let published = calls.get("PublishAppend").copied().unwrap_or(0);
        assert!((1..=most).contains(&published), "level {level}: {calls:?}");
        check_once(&read_all(&volume).await, 40, 2, "all lanes");
        drop(writers);
        cluster.check_namespace();
    }
}

/// A writer with a small window would stand still for most of each second.
#[tokio::test(start_paused = true)]
async fn a_small_window_does_not_wait_for_the_second_to_be_over() {
    let (_cluster, _client, volume) = start().await;
    let options = RecordOptions { level: RecordLevel::Memory, window: 2 << 20, ..RecordOptions::default() };
    let appender = volume.record_appender(FILE, options).await.expect("an appender");
    let begun = tokio::time::Instant::now();
    for _ in 0..40 {
        appender.append(&[7; 512 << 10]).await.expect("taken");
    }
    appender.close().await.expect("closed");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(3), "20 MiB took {took:?}");
    assert_eq!(read_all(&volume).await.into_values().collect::<Vec<_>>(), [40]);
}

/// Nobody could append to a file any more of which all was cut, or is encoded and lies elsewhere: its append would stay
/// open, because members have nothing of its chunk any more. But where one has something the others lack it.
#[tokio::test(start_paused = true)]
async fn an_append_of_which_all_was_freed_is_closed() {
    let (cluster, _client, volume) = start_with(3).await;
    let free = |disks| {
        let mut state = cluster.fake.state.lock();
        state.delete_chunks(disks);
        state.records.faults = [Some(RecordFault::Refused)].into();
    };
    let cut = async || {
        let mut handle = volume.open(FILE).await.expect("opened");
        handle.truncate(0).await.expect("cut");
        handle.close().await.expect("closed");
    };
    let append = async |record: &'static [u8]| {
        let next = appender(&volume, RecordLevel::Durable).await;
        next.append(record).await?.done().await?;
        next.close().await
    };
    let lives = appender(&volume, RecordLevel::Durable).await;
    lives.append(b"one").await.expect("taken").done().await.expect("appended");
    lives.flush().await.expect("visible");
    cut().await;
    free(2..=3);
    let error = append(b"two").await.expect_err("one member has it still");
    assert!(error.to_string().contains("has only 0 bytes"), "{error}");
    // Its client believes that the file had nothing of it, and looks for the record where nothing is any more: it is
    // not known what became of it. Who comes next looks what the file has.
    free(1..=1);
    let error = append(b"three").await.expect_err("nothing says where it is");
    assert!(matches!(error, crate::error::ClientError::Unreadable { .. }), "{error}");
    append(b"four").await.expect("appended");
    assert_eq!(read_all(&volume).await.into_keys().collect::<Vec<_>>(), [b"four"]);
    // Who looked lately knows that none of its own can be there.
    cut().await;
    tokio::time::sleep(Duration::from_secs(31)).await;
    free(1..=3);
    append(b"five").await.expect("appended");
    assert_eq!(read_all(&volume).await.into_keys().collect::<Vec<_>>(), [b"five"]);
}
