//! Open appends: one chunk that many write to, and what the file gets of it.
use crate::driver::*;
use cairn_meta_core::{NamedScan, SessionState, Suspects};
use cairn_types::{BLOCK_SIZE, ErrorCode, InodeId, SessionId};
use cairn_wire::Opcode;
use cairn_wire::meta::{
    GetAppendRequest, OpenAppend, OpenAppendRequest, OpenAppendResponse, PublishAppendRequest, PunchRequest,
};

const BLOCK: u64 = BLOCK_SIZE as u64;

impl Driver {
    fn open_append(&mut self, inode: u64, after: u64, index: u32) -> Answer<OpenAppend> {
        let header = self.next();
        let request = OpenAppendRequest { header, inode, after, pg: 7, index, creation_epoch: 3 };
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
        let answer: OpenAppendResponse = self.mutate(opcode, &PublishAppendRequest { header, inode, number, to })?;
        self.check();
        assert_eq!(answer.size, self.getattr(inode).expect("it is there").size);
        Ok(answer.append.expect("an append"))
    }
    fn get_append(&self, inode: u64, number: u64) -> Answer<Option<OpenAppend>> {
        let request = GetAppendRequest { header: self.header(0), inode, number };
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

/// Of what was cut, moved away or removed only whole blocks that nobody writes may go; what is not published yet comes at the end.
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

/// What somebody was told is durable would be freed before its file has it, or what nobody gets any more be kept for ever.
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
