//! Snapshots among random operations: what is read at each is the model of the moment when it was taken, and blocks are
//! freed exactly when neither a file nor a snapshot that is left names them. Snapshots of directories, and clones out
//! of them: `directories`.
mod directories;

use super::*;
use crate::driver::Answer;
use crate::translate::attributes;
use cairn_types::WallTime;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, ListChangedRequest, ListChangedResponse,
    ListSnapshotsRequest, ListSnapshotsResponse, MetaHeader, RenameSnapshotRequest,
};

/// Who takes snapshots.
const SESSION: u64 = 1 << 40;
const MINUTE: u64 = 61_000_000_000;

/// What there was when a snapshot was taken.
struct Moment {
    name: String,
    /// Whose snapshot it is; 0: the volume's.
    directory: u64,
    model: Model,
}

#[derive(Default)]
struct Taken {
    /// By number.
    moments: BTreeMap<u64, Moment>,
    /// Directories have some of their own, and files and trees are cloned out of them.
    of_directories: bool,
    next: u64,
    sequence: u64,
    /// Operations that are the model's too.
    operations: u64,
    /// Files that were cloned.
    cloned: u64,
    seen: BTreeMap<&'static str, u64>,
}

impl Taken {
    fn header(&mut self) -> Option<MetaHeader> {
        self.sequence += 1;
        let who = Some(Credentials { uid: 0, gid: 0, groups: vec![] });
        Some(MetaHeader { volume: 1, partition: 1, session: SESSION, slot: 0, sequence: self.sequence, who })
    }

    fn note(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// One of the volume's, or of those of directories.
    fn some(&self, number: u32, of_directory: bool) -> Option<(u64, String)> {
        let of = |(_, moment): &(&u64, &Moment)| (moment.directory != 0) == of_directory;
        let all: Vec<_> = self.moments.iter().filter(of).collect();
        let (number, moment) = all.get(number as usize % all.len().max(1))?;
        Some((**number, moment.name.clone()))
    }

    fn count(&self, of_directory: bool) -> usize {
        self.moments.values().filter(|moment| (moment.directory != 0) == of_directory).count()
    }

    fn step(&mut self, pair: &mut Pair, step: &Step) {
        let n = step.numbers;
        if self.of_directories && n[0] & 24 != 0 {
            return self.directory_step(pair, step);
        }
        match n[0] % 8 {
            0..=3 if self.count(false) < 5 => {
                let name = format!("s{}", self.next);
                self.next += 1;
                let request = CreateSnapshotRequest {
                    header: self.header(),
                    name: name.clone().into(),
                    ..CreateSnapshotRequest::default()
                };
                let taken: Answer<CreateSnapshotResponse> = pair.driver.mutate(Opcode::CreateSnapshot, &request);
                let number = taken.unwrap().number;
                assert!(number > 0, "nobody overwrites anything in place");
                self.moments.insert(number, Moment { name, directory: 0, model: pair.model.clone() });
                self.note("taken");
            }
            4 | 5 => {
                let Some((number, name)) = self.some(n[1], false) else { return };
                let request = DeleteSnapshotRequest {
                    header: self.header(),
                    name: name.clone().into(),
                    ..DeleteSnapshotRequest::default()
                };
                pair.driver.mutate::<Empty>(Opcode::DeleteSnapshot, &request).unwrap();
                self.moments.remove(&number);
                // Some wait until others have gone, too.
                if n[2].is_multiple_of(2) {
                    pair.reclaim(n[3]);
                }
                self.note("deleted");
            }
            6 => {
                let Some((number, name)) = self.some(n[1], false) else { return };
                let new = format!("r{}", self.next);
                self.next += 1;
                let header = self.header();
                let (old_name, new_name) = (name.into(), new.clone().into());
                let request =
                    RenameSnapshotRequest { header, name: old_name, new_name, ..RenameSnapshotRequest::default() };
                pair.driver.mutate::<Empty>(Opcode::RenameSnapshot, &request).unwrap();
                self.moments.get_mut(&number).expect("it was found").name = new;
                self.note("renamed");
            }
            _ => {
                pair.restart();
                self.note("restarted");
            }
        }
    }

    /// Everything that can be read at every snapshot.
    fn compare(&mut self, namespace: &Namespace, now: &Model) {
        let reader = Driver::on(restore(&namespace.snapshot().pages(1 << 20).collect::<Vec<_>>()));
        let list: ListSnapshotsResponse =
            reader.read(Opcode::ListSnapshots, &ListSnapshotsRequest { header: reader.header(0) }).unwrap();
        let live = list.snapshots.iter().filter(|one| !one.deleting);
        let listed: Vec<_> = live.map(|one| (one.number, one.directory, one.name.clone())).collect();
        let known = self.moments.iter().map(|(number, of)| (*number, of.directory, of.name.clone().into_bytes()));
        assert_eq!(listed, known.collect::<Vec<_>>());
        let listing = reader.lookup(ROOT, ".snapshots").unwrap();
        assert!(!reader.names(ROOT).contains(&".snapshots".into()), "no listing shows it");
        assert_eq!(reader.names(listing.inode), self.shown(ROOT));
        for Moment { name, model, .. } in self.moments.values().filter(|moment| moment.directory == 0) {
            let root = reader.lookup(listing.inode, name).unwrap().inode;
            assert_eq!(reader.resolve(ROOT, &format!(".snapshots/{name}")).unwrap().attributes.unwrap().inode, root);
            compare_at(&reader, model, model.nodes.keys().copied(), root - ROOT, &mut self.seen);
        }
        if self.of_directories {
            self.compare_directories(&reader, now);
        }
    }

    /// Names that a directory shows, in order: not those of a time when it was not there.
    fn shown(&self, directory: u64) -> Vec<String> {
        let was_there = |model: &Model| model.nodes.contains_key(&directory) && model.links(directory) > 0;
        let is_shown = |of: &&Moment| of.directory == directory || of.directory == 0 && was_there(&of.model);
        let shown = self.moments.values().filter(is_shown);
        shown.map(|moment| moment.name.clone()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// What changed since each snapshot is told, with all directories above it.
    fn compare_changed(&mut self, pair: &Pair) {
        let reader = &pair.driver;
        for (number, older) in &self.moments {
            let later = self.moments.range(number + 1..).map(|(newer, of)| (*newer, &of.model, of.directory));
            let mut told_any = 0;
            for (newer, now, top) in later.chain([(0, &pair.model, 0)]) {
                let told = changed(reader, *number, newer);
                check_changed(&older.model, now, top, &told);
                told_any += told.0.len() as u64;
            }
            *self.seen.entry("changes told").or_default() += told_any;
        }
    }

    /// What neither files nor snapshots name is freed, and nothing else. What was cloned may count as older than it is,
    /// and be kept until older snapshots go.
    fn compare_frees(&self, pair: &Pair) {
        let mut free = pair.done_frees.clone();
        for record in pair.driver.namespace.pending_frees(0, usize::MAX) {
            let blocks = record.first_block..record.first_block + record.blocks;
            free.extend(blocks.map(|block| (record.pg, record.index, block)));
        }
        let mut expected = pair.model.free.clone();
        for node in self.moments.values().flat_map(|moment| moment.model.nodes.values()) {
            node.blocks().iter().for_each(|block| _ = expected.remove(block));
        }
        if self.cloned > 0 && !self.moments.is_empty() {
            return assert!(free.is_subset(&expected), "blocks that files or snapshots name: {free:?}, {expected:?}");
        }
        assert_eq!(free, expected, "blocks that neither files nor snapshots name");
    }
}

/// Directories and others, by pages of a few.
fn changed(reader: &Driver, older: u64, newer: u64) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let (mut told, mut after) = ((BTreeSet::new(), BTreeSet::new()), Vec::new());
    loop {
        let request = ListChangedRequest { header: reader.header(0), older, newer, after, count_max: 3 };
        let page: ListChangedResponse = reader.read(Opcode::ListChanged, &request).unwrap();
        told.0.extend(page.directories);
        told.1.extend(page.others);
        if page.after.is_empty() {
            return told;
        }
        after = page.after;
    }
}

/// `top`: the directory of the later snapshot, above which there is nothing.
fn check_changed(then: &Model, now: &Model, top: u64, (directories, others): &(BTreeSet<u64>, BTreeSet<u64>)) {
    for (inode, was) in &then.nodes {
        let Some(is) = now.nodes.get(inode).filter(|_| now.links(*inode) > 0 && then.links(*inode) > 0) else {
            continue;
        };
        if is.is_directory() && is.entries() != was.entries() {
            assert!(directories.contains(inode), "entries of {inode} changed, and it is not told");
        }
        let (before, after) = (then.attributes(*inode), now.attributes(*inode));
        if before.ctime != after.ctime && !is.is_directory() {
            assert!(others.contains(inode), "{inode} changed, and it is not told");
        }
    }
    for inode in directories.iter().filter(|inode| ![ROOT, top].contains(inode)) {
        let above = now
            .nodes
            .iter()
            .find(|(_, node)| node.is_directory() && node.entries().into_iter().any(|(_, entry)| entry == *inode));
        let Some((above, _)) = above else { panic!("{inode} is told, and has no name: {:?}", now.nodes.get(inode)) };
        assert!(directories.contains(above), "{inode} is told, and {above}, in which it lies, is not");
    }
}

fn compare_at(
    reader: &Driver,
    model: &Model,
    inodes: impl Iterator<Item = u64>,
    outward: u64,
    seen: &mut BTreeMap<&'static str, u64>,
) {
    for (inode, node) in inodes.map(|inode| (inode, &model.nodes[&inode])) {
        let at = inode | outward;
        if model.links(inode) == 0 {
            assert_eq!(reader.getattr(at), Err(ErrorCode::Stale), "{inode} had no name when the snapshot was taken");
            continue;
        }
        let then = model.attributes(inode);
        let found = attributes(&reader.getattr(at).unwrap());
        assert_eq!(found, cairn_model::Attributes { inode: at, ..then }, "attributes of {inode} at a snapshot");
        assert_eq!(attributes(&reader.getattr_many(&[at]).unwrap()[0]), found);
        let names: Vec<String> = node.xattrs.keys().map(|n| String::from_utf8_lossy(n).into_owned()).collect();
        assert_eq!(reader.list_xattr(at).unwrap(), names);
        for (name, value) in names.iter().zip(node.xattrs.values()) {
            assert_eq!(reader.get_xattr(at, name).as_ref(), Ok(value));
        }
        if node.is_directory() {
            let listed = reader.readdir(at).unwrap();
            let entries: Vec<(Vec<u8>, u64)> = listed.iter().map(|e| (e.name.clone(), e.inode)).collect();
            let expected = node.entries().into_iter().map(|(name, inode)| (name, inode | outward));
            assert_eq!(entries, expected.collect::<Vec<_>>(), "entries of {inode} at a snapshot");
            for entry in listed.iter().filter(|entry| entry.name[0] != 0xff) {
                let found = reader.lookup(at, &String::from_utf8_lossy(&entry.name)).unwrap();
                assert_eq!(Some(&found), entry.attributes.as_ref());
            }
        } else if node.is_file() {
            let pieces = crate::translate::joined(&reader.extents(at).unwrap());
            assert_eq!(pieces, crate::translate::extents(&node.pieces()), "contents of {inode} at a snapshot");
            *seen.entry("files read").or_default() += 1;
            let is_changed = attributes(&reader.getattr(inode).unwrap_or_default()) != then;
            *seen.entry("files read that have changed").or_default() += u64::from(is_changed);
        } else if node.is_symlink() {
            assert!(reader.readlink(at).is_ok());
        }
    }
}

fn run_all(steps: &[Step], mut taken: Taken) -> BTreeMap<&'static str, u64> {
    let mut pair = Pair::new();
    pair.driver.set_feature_level(if taken.of_directories { 18 } else { 10 });
    pair.driver.now += MINUTE;
    for (i, step) in steps.iter().enumerate() {
        match step.who >> 3 {
            0..=3 => taken.step(&mut pair, step),
            4..=7 if taken.of_directories => taken.step(&mut pair, step),
            _ => pair.step(step),
        }
        pair.driver.check();
        if i % 8 == 0 {
            taken.compare(&pair.driver.namespace, &pair.model);
            taken.compare_changed(&pair);
        }
    }
    pair.reclaim(3);
    taken.compare(&pair.driver.namespace, &pair.model);
    taken.compare_frees(&pair);

    let (pages, applied) = &pair.checkpoint;
    let mut later = restore(pages);
    replay(&mut later, &pair.driver.log[*applied..], "a checkpoint and the log since");
    taken.compare(&later, &pair.model);
    let mut other = Namespace::new(&open_config());
    replay(&mut other, &pair.driver.log, "the whole log");
    let bytes = |n: &Namespace| n.snapshot().pages(9000).collect::<Vec<_>>();
    assert_eq!(bytes(&other), bytes(&pair.driver.namespace), "two members write the same checkpoint");

    let numbers: Vec<u64> = taken.moments.keys().copied().collect();
    for number in numbers {
        let request = DeleteSnapshotRequest { header: taken.header(), number, ..DeleteSnapshotRequest::default() };
        pair.driver.mutate::<Empty>(Opcode::DeleteSnapshot, &request).unwrap();
        taken.moments.remove(&number);
        pair.reclaim(2 + number as u32 % 2);
        taken.compare_frees(&pair);
        pair.driver.check();
    }
    assert!(!pair.driver.namespace.has_snapshots());
    pair.compare(&pair.driver.namespace);
    assert!(pair.driver.namespace.time() > WallTime(0));
    taken.seen
}

/// `wanted`: what has to happen more than so often.
fn run_cases(cases: u32, one: impl Fn(&[Step]) -> BTreeMap<&'static str, u64>, wanted: &[&str], least: u64) {
    let seen = std::cell::RefCell::new(BTreeMap::<_, u64>::new());
    let config = ProptestConfig { cases, max_shrink_iters: 2000, failure_persistence: None, ..Default::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let result = TestRunner::new_with_rng(config, rng).run(&steps(160), |steps| {
        for (what, count) in one(&steps) {
            *seen.borrow_mut().entry(what).or_default() += count;
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let seen = seen.into_inner();
    for what in wanted {
        assert!(seen.get(what).is_some_and(|count| *count > least), "too little happened ({what}): {seen:?}");
    }
}

/// A snapshot shows what came later, or lost what was there; its blocks are freed while it names them, or never.
#[test]
fn snapshots_and_model_agree() {
    let wanted =
        ["taken", "deleted", "renamed", "restarted", "files read", "files read that have changed", "changes told"];
    run_cases(cases() / 2, |steps| run_all(steps, Taken::default()), &wanted, 20);
}
