//! Open appends: one chunk that many write to, and what the file gets of it.
use crate::driver::*;
use cairn_meta_core::{Appending, NamedScan, SessionState, Suspects};
use cairn_types::{BLOCK_SIZE, ErrorCode, InodeId, SessionId};
use cairn_wire::Opcode;
use cairn_wire::meta::{
    GetAppendRequest, OpenAppend, OpenAppendRequest, OpenAppendResponse, PublishAppendRequest, PublishTo, PunchRequest,
};

const BLOCK: u64 = BLOCK_SIZE as u64;

impl Driver {
    fn open_append(&mut self, inode: u64, after: u64, index: u32) -> Answer<OpenAppend> {
        self.open_lane(inode, (after >> 56) as u32, after, index)
    }
    fn open_lane(&mut self, inode: u64, lane: u32, after: u64, index: u32) -> Answer<OpenAppend> {
        let header = self.next();
        let request = OpenAppendRequest { header, inode, after, pg: 7, index, creation_epoch: 3, lane };
        let answer: OpenAppendResponse = self.mutate(Opcode::OpenAppend, &request)?;
        Ok(answer.append.expect("an append"))
    }
    fn publish_append(&mut self, inode: u64, number: u64, to: u64) -> Answer<OpenAppend> {
        self.append_op(Opcode::PublishAppend, inode, number, to)
    }
    fn close_append(&mut self, inode: u64, number: u64, to: u64) -> Answer<OpenAppend> {
        self.append_op(Opcode::CloseAppend, inode, number, to)
    }
    fn append_op(&mut self, opcode: Opcode, inode: u64, number: u64, to: u64) -> Answer<OpenAppend> {
        let header = self.next();
        let answer: OpenAppendResponse =
            self.mutate(opcode, &PublishAppendRequest { header, inode, number, to, ..Default::default() })?;
        self.check();
        assert_eq!(answer.size, self.getattr(inode).expect("it is there").size);
        Ok(answer.append.expect("an append"))
    }
    fn get_append(&self, inode: u64, number: u64) -> Answer<Option<OpenAppend>> {
        let request = GetAppendRequest { header: self.header(0), inode, number, lane: 0 };
        self.read::<OpenAppendResponse>(Opcode::GetAppend, &request).map(|answer| answer.append)
    }
}

/// Bytes would be in a file twice, in holes, or not at all.
#[test]
fn the_file_gets_each_byte_once_at_its_end() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    assert_eq!(d.get_append(file, 0), Ok(None));
    d.publish(file, &[extent(0, 100, 1, 0)]).unwrap();
    let opened = d.open_append(file, 0, 20).unwrap();
    let expected = OpenAppend { number: 1, pg: 7, index: 20, creation_epoch: 3, published: 0, open: true };
    assert_eq!(opened, expected);
    assert_eq!(d.open_append(file, 0, 21), Ok(expected), "the second one gets the first one's");
    assert_eq!(d.publish_append(file, 1, 2 * BLOCK).unwrap().published, 2 * BLOCK);
    assert_eq!(d.publish_append(file, 1, 2 * BLOCK).unwrap().published, 2 * BLOCK);
    assert_eq!(d.publish_append(file, 1, BLOCK).unwrap().published, 2 * BLOCK, "never less");
    assert_eq!(d.getattr(file).unwrap().size, 3 * BLOCK);
    // Somebody else appends in between.
    d.publish(file, &[extent(3 * BLOCK, 10, 1, BLOCK)]).unwrap();
    assert!(!d.close_append(file, 1, 3 * BLOCK + 7).unwrap().open);
    let extents = [
        extent(0, 100, 1, 0),
        extent(BLOCK, 2 * BLOCK, 20, 0),
        extent(3 * BLOCK, 10, 1, BLOCK),
        extent(4 * BLOCK, BLOCK + 7, 20, 2 * BLOCK),
    ];
    assert_eq!(d.extents(file).unwrap(), extents);
    // Late ones change nothing, and learn where it ended.
    assert_eq!(d.publish_append(file, 1, 5 * BLOCK).unwrap().published, 3 * BLOCK + 7);
    assert_eq!(d.close_append(file, 1, 4 * BLOCK).unwrap().published, 3 * BLOCK + 7);
    assert_eq!(d.extents(file).unwrap(), extents);
    assert_eq!(d.open_append(file, 0, 22), Err(ErrorCode::Conflict), "somebody else's was there in between");
    assert_eq!(d.open_append(file, 1, 22).unwrap().number, 2);
    assert_eq!(d.get_append(file, 0).unwrap().unwrap().index, 22);
    assert_eq!(d.get_append(file, 1).unwrap().unwrap().published, 3 * BLOCK + 7);
}

/// Blocks that are still written would be freed with those that the file had; chunks would hold more than they can.
#[test]
fn an_open_append_is_published_in_whole_blocks() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.open_append(file, 0, 20).unwrap();
    assert_eq!(d.publish_append(file, 1, BLOCK + 1), Err(ErrorCode::InvalidArgument));
    assert_eq!(d.close_append(file, 1, (64 << 20) + 1), Err(ErrorCode::InvalidArgument));
    assert_eq!(d.publish_append(file, 2, BLOCK), Err(ErrorCode::NotFound));
    assert_eq!(d.close_append(file, 1, 64 << 20).unwrap().published, 64 << 20);
    assert_eq!(d.open_append(ROOT, 0, 20), Err(ErrorCode::IsDirectory));
}

/// Of what was cut, moved away or removed only whole blocks that nobody writes may go; what is not published yet comes
/// at the end.
#[test]
fn files_with_open_appends_are_cut_and_removed() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.open_append(file, 0, 20).unwrap();
    d.publish_append(file, 1, 3 * BLOCK).unwrap();
    d.punch(PunchRequest { inode: file, offset: 0, length: BLOCK, ..Default::default() }).unwrap();
    d.truncate(file, BLOCK + 10).unwrap();
    assert_eq!(d.frees(), [(20, 0, 1), (20, 2, 1)]);
    d.rename(ROOT, "f", ROOT, "g", 0).unwrap();
    d.publish_append(file, 1, 4 * BLOCK).unwrap();
    assert_eq!(d.extents(file).unwrap(), [extent(BLOCK, 10, 20, BLOCK), extent(2 * BLOCK, BLOCK, 20, 3 * BLOCK)]);
    d.unlink(ROOT, "g").unwrap();
    d.check();
    assert_eq!(d.publish_append(file, 1, 5 * BLOCK), Err(ErrorCode::Stale));
    assert_eq!(d.get_append(file, 0), Err(ErrorCode::Stale));
}

/// What somebody was told is durable would be freed before its file has it, or what nobody gets any more be kept for
/// ever.
#[test]
fn chunks_of_open_appends_are_no_garbage() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    let writer = SessionId::of_append(InodeId(file)).0;
    assert_eq!(d.namespace.session_state(writer), SessionState::Ended);
    let judge = |d: &Driver| {
        let mut suspects = Suspects::default();
        suspects.add(7, 20, writer, [(0, 10)]);
        let (snapshot, mut scan) = (d.namespace.snapshot(), NamedScan::new());
        while scan.step(&snapshot, 3, |named| suspects.strike(named)).expect("a sound namespace") {}
        suspects.into_garbage().map(|range| (range.first_block, range.blocks)).collect::<Vec<_>>()
    };
    d.open_append(file, 0, 20).unwrap();
    d.publish_append(file, 1, 2 * BLOCK).unwrap();
    assert_eq!(judge(&d), []);
    d.close_append(file, 1, 3 * BLOCK + 5).unwrap();
    assert_eq!(judge(&d), [(4, 6)]);
    d.open_append(file, 1, 21).unwrap();
    assert_eq!(judge(&d), [(4, 6)]);
}

/// The appends of a file that grows for years would take memory without a bound.
#[test]
fn closed_appends_are_forgotten_one_by_one() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    for number in 1..=80 {
        d.open_append(file, number - 1, number as u32).unwrap();
        d.close_append(file, number, 10).unwrap();
    }
    assert_eq!(d.get_append(file, 15), Err(ErrorCode::NotFound));
    assert_eq!(d.get_append(file, 16).unwrap().unwrap().published, 10);
    assert_eq!(d.getattr(file).unwrap().size, 79 * BLOCK + 10);
}

/// A quota would not hold, or take back what was promised.
#[test]
fn quotas_refuse_to_open_and_never_to_publish() {
    let mut d = Driver::new();
    let dir = d.mkdir(ROOT, "d", 0o755).unwrap().inode;
    d.set_quota(dir, 65 << 20, 0).unwrap();
    let file = d.create(dir, "f", 0o644).unwrap().inode;
    d.open_append(file, 0, 20).unwrap();
    d.close_append(file, 1, 2 << 20).unwrap();
    assert_eq!(d.open_append(file, 1, 21), Err(ErrorCode::QuotaExceeded));
    d.check();
}

/// The leader would look after appends that are closed, or of files that are gone, or not after one that is open.
#[test]
fn open_appends_are_listed_until_they_are_closed_or_their_file_goes() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.open_append(file, 0, 20).unwrap();
    assert_eq!(d.namespace.open_appends((0, 0), 9), [], "members of before would not have the list");
    d.set_feature_level(14);
    d.publish_append(file, 1, BLOCK).unwrap();
    let listed = |inode, number, published| Appending { inode, number, pg: 7, published };
    assert_eq!(d.namespace.open_appends((0, 0), 9), [listed(file, 1, BLOCK)]);
    let others: Vec<u64> = (0..4).map(|i| d.create(ROOT, &format!("g{i}"), 0o644).unwrap().inode).collect();
    for file in &others {
        d.open_append(*file, 0, 30).unwrap();
    }
    assert_eq!(d.namespace.open_appends((0, 0), 9).len(), 5);
    let page = d.namespace.open_appends((others[0], 1), 2);
    assert_eq!(page, [listed(others[1], 1, 0), listed(others[2], 1, 0)]);
    assert_eq!(restore(&d.pages()).open_appends((0, 0), 9).len(), 5, "a checkpoint has them");
    d.close_append(file, 1, 2 * BLOCK).unwrap();
    d.close_append(file, 1, 2 * BLOCK).unwrap();
    d.unlink(ROOT, "g2").unwrap();
    d.check();
    let left = [others[0], others[1], others[3]].map(|inode| listed(inode, 1, 0));
    assert_eq!(d.namespace.open_appends((0, 0), 9), left);
    assert_eq!((d.namespace.appending_count(), restore(&d.pages()).appending_count()), (3, 3));
}

/// Writers of one lane would close or publish what is another one's, or a file have a block twice.
#[test]
fn each_lane_has_appends_of_its_own() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    let open = |d: &mut Driver, lane: u32, after: u64, index: u32| {
        let header = d.next();
        let request = OpenAppendRequest { header, inode: file, after, pg: lane + 1, index, creation_epoch: 3, lane };
        let answer: Answer<OpenAppendResponse> = d.mutate(Opcode::OpenAppend, &request);
        answer.map(|answer| answer.append.expect("an append"))
    };
    let last = |d: &Driver, lane: u32| {
        let request = GetAppendRequest { header: d.header(0), inode: file, number: 0, lane };
        d.read::<OpenAppendResponse>(Opcode::GetAppend, &request)
    };
    assert_eq!(open(&mut d, 3, 0, 20).unwrap().number, 1, "before members know of lanes there is one");
    d.close_append(file, 1, BLOCK).unwrap();
    d.set_feature_level(14);
    let number = |lane: u64, number: u64| lane << 56 | number;
    assert_eq!(open(&mut d, 16, 0, 21), Err(ErrorCode::InvalidArgument));
    assert_eq!(open(&mut d, 0, 0, 21), Err(ErrorCode::Conflict));
    assert_eq!(open(&mut d, 3, 1, 21), Err(ErrorCode::Conflict), "that is another lane's");
    assert_eq!(open(&mut d, 3, 0, 21).unwrap().number, number(3, 1));
    assert_eq!(open(&mut d, 3, 0, 22).unwrap().index, 21, "the second one gets the first one's");
    assert_eq!(open(&mut d, 15, 0, 22).unwrap().number, number(15, 1));
    assert_eq!(open(&mut d, 0, 1, 23).unwrap().number, 2);
    assert_eq!(last(&d, 2).unwrap().append, None);
    let found = last(&d, 3).unwrap();
    assert_eq!((found.append.unwrap().index, found.open_pgs), (21, vec![1, 4, 16]));
    d.publish_append(file, number(15, 1), BLOCK).unwrap();
    d.publish_append(file, number(3, 1), BLOCK).unwrap();
    d.close_append(file, number(15, 1), BLOCK + 5).unwrap();
    assert!(d.get_append(file, number(3, 1)).unwrap().unwrap().open);
    let places: Vec<(u64, u32, u64)> =
        d.extents(file).unwrap().iter().map(|e| (e.file_offset / BLOCK, e.index, e.chunk_offset)).collect();
    assert_eq!(places, [(0, 20, 0), (1, 22, 0), (2, 21, 0), (3, 22, BLOCK)]);
    for n in 1..=70 {
        let after = if n == 1 { number(15, 1) } else { number(15, n) };
        assert_eq!(open(&mut d, 15, after, 40).unwrap().number, number(15, n + 1));
        d.close_append(file, number(15, n + 1), 0).unwrap();
    }
    assert_eq!(d.get_append(file, number(15, 6)), Err(ErrorCode::NotFound));
    assert!(!d.get_append(file, number(15, 7)).unwrap().unwrap().open);
    assert_eq!(last(&d, 3).unwrap().append.unwrap().number, number(3, 1));
    assert_eq!(last(&d, 0).unwrap().append.unwrap().number, 2);
    d.unlink(ROOT, "f").unwrap();
    d.check();
    assert_eq!(d.namespace.appending_count(), 0);
}

/// Lanes that are published at once would get bytes twice or half of them, or members of different age disagree.
#[test]
fn lanes_are_published_together_or_not_at_all() {
    let mut d = Driver::new();
    d.set_feature_level(14);
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    let number = |lane: u64| lane << 56 | 1;
    for lane in 0..4 {
        d.open_lane(file, lane, 0, 20 + lane).unwrap();
    }
    let publish = |d: &mut Driver, opcode, more: &[(u64, u64)]| {
        let header = d.next();
        let more = more.iter().map(|(number, to)| PublishTo { number: *number, to: *to }).collect();
        let request = PublishAppendRequest { header, inode: file, number: 1, to: BLOCK, more };
        let answer: Answer<OpenAppendResponse> = d.mutate(opcode, &request);
        d.check();
        answer.map(|answer| answer.more.iter().map(|one| (one.number, one.published, one.open)).collect::<Vec<_>>())
    };
    let more = [(number(1), BLOCK), (number(2), 2 * BLOCK), (number(1), 3 * BLOCK), (number(9), BLOCK)];
    assert_eq!(publish(&mut d, Opcode::PublishAppend, &more), Ok(vec![]), "members of before do the first one");
    assert_eq!(d.getattr(file).unwrap().size, BLOCK);
    d.set_feature_level(17);
    let torn = [(number(1), BLOCK), (number(2), BLOCK + 1)];
    assert_eq!(publish(&mut d, Opcode::PublishAppend, &torn), Err(ErrorCode::InvalidArgument));
    assert_eq!(d.getattr(file).unwrap().size, BLOCK, "nothing of it was done");
    d.close_append(file, number(3), 5).unwrap();
    let too_many: Vec<(u64, u64)> = (0..16).map(|_| (number(1), BLOCK)).collect();
    assert_eq!(publish(&mut d, Opcode::PublishAppend, &too_many), Err(ErrorCode::InvalidArgument));
    let answered = vec![(number(1), BLOCK, true), (number(2), 2 * BLOCK, true), (number(1), 3 * BLOCK, true)];
    assert_eq!(publish(&mut d, Opcode::PublishAppend, &more), Ok(answered.clone()), "what is not known is left out");
    let again: Vec<_> = answered
        .iter()
        .map(|(n, to, open)| (*n, (*to).max(if *n == number(1) { 3 * BLOCK } else { 0 }), *open))
        .collect();
    assert_eq!(publish(&mut d, Opcode::PublishAppend, &more), Ok(again));
    assert_eq!(publish(&mut d, Opcode::PublishAppend, &[(number(3), BLOCK)]), Ok(vec![(number(3), 5, false)]));
    let places: Vec<(u64, u32, u64)> =
        d.extents(file).unwrap().iter().map(|e| (e.file_offset / BLOCK, e.index, e.length)).collect();
    assert_eq!(places, [(0, 20, BLOCK), (1, 23, 5), (2, 21, BLOCK), (3, 22, 2 * BLOCK), (5, 21, 2 * BLOCK)]);
    assert_eq!(publish(&mut d, Opcode::CloseAppend, &[(number(1), 9 * BLOCK)]), Ok(vec![]), "one is closed");
    assert!(d.get_append(file, number(1)).unwrap().unwrap().open);
}

/// Records would be acknowledged that the file can never get.
#[test]
fn no_append_is_opened_where_the_file_has_no_room() {
    let mut d = Driver::new();
    d.set_feature_level(14);
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    let most = (1 << 63) - (1 << 30) - BLOCK;
    d.truncate(file, most + 1).unwrap();
    d.open_append(file, 0, 20).unwrap();
    d.close_append(file, 1, 0).unwrap();
    d.set_feature_level(17);
    assert_eq!(d.open_append(file, 1, 21), Err(ErrorCode::FileTooLarge));
    d.truncate(file, most).unwrap();
    // All are opened while there is room, and then filled.
    let open = |lane: u32| d.open_lane(file, lane, u64::from(lane == 0), 30 + lane).unwrap().number;
    for number in (0..16).map(open).collect::<Vec<_>>() {
        assert_eq!(d.publish_append(file, number, 64 << 20).map(|append| append.published), Ok(64 << 20));
    }
}
