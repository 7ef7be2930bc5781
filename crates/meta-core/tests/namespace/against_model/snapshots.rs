//! Snapshots among random operations: what is read at each is the model of the moment when it was taken, and blocks are freed exactly when
//! neither a file nor a snapshot that is left names them.
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

#[derive(Default)]
struct Taken {
    /// By name.
    models: BTreeMap<String, Model>,
    next: u64,
    sequence: u64,
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

    fn some_name(&self, number: u32) -> Option<String> {
        let at = number as usize % self.models.len().max(1);
        self.models.keys().nth(at).cloned()
    }

    fn step(&mut self, pair: &mut Pair, step: &Step) {
        let n = step.numbers;
        match n[0] % 8 {
            0..=3 if self.models.len() < 5 => {
                let name = format!("s{}", self.next);
                self.next += 1;
                let request = CreateSnapshotRequest {
                    header: self.header(),
                    name: name.clone().into(),
                    ..CreateSnapshotRequest::default()
                };
                let taken: Answer<CreateSnapshotResponse> = pair.driver.mutate(Opcode::CreateSnapshot, &request);
                assert!(taken.unwrap().number > 0, "nobody overwrites anything in place");
                self.models.insert(name, pair.model.clone());
                self.note("taken");
            }
            4 | 5 => {
                let Some(name) = self.some_name(n[1]) else { return };
                let request = DeleteSnapshotRequest {
                    header: self.header(),
                    name: name.clone().into(),
                    ..DeleteSnapshotRequest::default()
                };
                pair.driver.mutate::<Empty>(Opcode::DeleteSnapshot, &request).unwrap();
                self.models.remove(&name);
                // Some wait until others have gone, too.
                if n[2].is_multiple_of(2) {
                    pair.reclaim(n[3]);
                }
                self.note("deleted");
            }
            6 => {
                let Some(name) = self.some_name(n[1]) else { return };
                let new = format!("r{}", self.next);
                self.next += 1;
                let header = self.header();
                let (old_name, new_name) = (name.clone().into(), new.clone().into());
                let request =
                    RenameSnapshotRequest { header, name: old_name, new_name, ..RenameSnapshotRequest::default() };
                pair.driver.mutate::<Empty>(Opcode::RenameSnapshot, &request).unwrap();
                let model = self.models.remove(&name).unwrap();
                self.models.insert(new, model);
                self.note("renamed");
            }
            _ => {
                pair.restart();
                self.note("restarted");
            }
        }
    }

    /// Everything that can be read at every snapshot.
    fn compare(&mut self, namespace: &Namespace) {
        let reader = Driver::on(restore(&namespace.snapshot().pages(1 << 20).collect::<Vec<_>>()));
        let list: ListSnapshotsResponse =
            reader.read(Opcode::ListSnapshots, &ListSnapshotsRequest { header: reader.header(0) }).unwrap();
        let listed: BTreeSet<Vec<u8>> = list.snapshots.iter().filter(|s| !s.deleting).map(|s| s.name.clone()).collect();
        assert_eq!(listed, self.models.keys().map(|name| name.clone().into_bytes()).collect());
        let listing = reader.lookup(ROOT, ".snapshots").unwrap();
        assert!(!reader.names(ROOT).contains(&".snapshots".into()), "no listing shows it");
        assert_eq!(reader.names(listing.inode), self.models.keys().cloned().collect::<Vec<_>>());
        for (name, model) in &self.models {
            let root = reader.lookup(listing.inode, name).unwrap().inode;
            assert_eq!(reader.resolve(ROOT, &format!(".snapshots/{name}")).unwrap().attributes.unwrap().inode, root);
            compare_at(&reader, model, root - ROOT, &mut self.seen);
        }
    }

    /// What changed since each snapshot is told, with all directories above it.
    fn compare_changed(&mut self, pair: &Pair) {
        let reader = &pair.driver;
        let list: ListSnapshotsResponse =
            reader.read(Opcode::ListSnapshots, &ListSnapshotsRequest { header: reader.header(0) }).unwrap();
        let live: Vec<_> = list.snapshots.iter().filter(|one| !one.deleting).collect();
        for (at, older) in live.iter().enumerate() {
            let models = &self.models;
            let of = |name: &[u8]| &models[std::str::from_utf8(name).unwrap()];
            let later = live[at + 1..].iter().map(|newer| (newer.number, of(&newer.name)));
            let mut told_any = 0;
            for (newer, now) in later.chain([(0, &pair.model)]) {
                let told = changed(reader, older.number, newer);
                check_changed(of(&older.name), now, &told);
                told_any += told.0.len() as u64;
            }
            *self.seen.entry("changes told").or_default() += told_any;
        }
    }

    /// What neither files nor snapshots name is freed, and nothing else.
    fn compare_frees(&self, pair: &Pair) {
        let mut free = pair.done_frees.clone();
        for record in pair.driver.namespace.pending_frees(0, usize::MAX) {
            let blocks = record.first_block..record.first_block + record.blocks;
            free.extend(blocks.map(|block| (record.pg, record.index, block)));
        }
        let mut expected = pair.model.free.clone();
        for node in self.models.values().flat_map(|model| model.nodes.values()) {
            node.blocks().iter().for_each(|block| _ = expected.remove(block));
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

fn check_changed(then: &Model, now: &Model, (directories, others): &(BTreeSet<u64>, BTreeSet<u64>)) {
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
    for inode in directories.iter().filter(|inode| **inode != ROOT) {
        let above = now
            .nodes
            .iter()
            .find(|(_, node)| node.is_directory() && node.entries().into_iter().any(|(_, entry)| entry == *inode));
        let (above, _) = above.expect("a directory that is told has a name");
        assert!(directories.contains(above), "{inode} is told, and {above}, in which it lies, is not");
    }
}

fn compare_at(reader: &Driver, model: &Model, outward: u64, seen: &mut BTreeMap<&'static str, u64>) {
    for (inode, node) in &model.nodes {
        let at = inode | outward;
        if model.links(*inode) == 0 {
            assert_eq!(reader.getattr(at), Err(ErrorCode::Stale), "{inode} had no name when the snapshot was taken");
            continue;
        }
        let then = model.attributes(*inode);
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
            let is_changed = attributes(&reader.getattr(*inode).unwrap_or_default()) != then;
            *seen.entry("files read that have changed").or_default() += u64::from(is_changed);
        } else if node.is_symlink() {
            assert!(reader.readlink(at).is_ok());
        }
    }
}

fn run_all(steps: &[Step]) -> BTreeMap<&'static str, u64> {
    let mut pair = Pair::new();
    pair.driver.set_feature_level(10);
    pair.driver.now += MINUTE;
    let mut taken = Taken::default();
    for (i, step) in steps.iter().enumerate() {
        match step.who >> 3 {
            0..=3 => taken.step(&mut pair, step),
            _ => pair.step(step),
        }
        pair.driver.check();
        if i % 8 == 0 {
            taken.compare(&pair.driver.namespace);
            taken.compare_changed(&pair);
        }
    }
    pair.reclaim(3);
    taken.compare(&pair.driver.namespace);
    taken.compare_frees(&pair);

    let (pages, applied) = &pair.checkpoint;
    let mut later = restore(pages);
    replay(&mut later, &pair.driver.log[*applied..], "a checkpoint and the log since");
    taken.compare(&later);
    let mut other = Namespace::new(&open_config());
    replay(&mut other, &pair.driver.log, "the whole log");
    let bytes = |n: &Namespace| n.snapshot().pages(9000).collect::<Vec<_>>();
    assert_eq!(bytes(&other), bytes(&pair.driver.namespace), "two members write the same checkpoint");

    let names: Vec<String> = taken.models.keys().cloned().collect();
    for name in names {
        let request = DeleteSnapshotRequest {
            header: taken.header(),
            name: name.clone().into(),
            ..DeleteSnapshotRequest::default()
        };
        pair.driver.mutate::<Empty>(Opcode::DeleteSnapshot, &request).unwrap();
        taken.models.remove(&name);
        pair.reclaim(name.len() as u32);
        taken.compare_frees(&pair);
        pair.driver.check();
    }
    assert!(!pair.driver.namespace.has_snapshots());
    pair.compare(&pair.driver.namespace);
    assert!(pair.driver.namespace.time() > WallTime(0));
    taken.seen
}

/// A snapshot shows what came later, or lost what was there; its blocks are freed while it names them, or never.
#[test]
fn snapshots_and_model_agree() {
    let seen = std::cell::RefCell::new(BTreeMap::<_, u64>::new());
    let config =
        ProptestConfig { cases: cases() / 2, max_shrink_iters: 2000, failure_persistence: None, ..Default::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let result = TestRunner::new_with_rng(config, rng).run(&steps(160), |steps| {
        for (what, count) in run_all(&steps) {
            *seen.borrow_mut().entry(what).or_default() += count;
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let seen = seen.into_inner();
    for what in
        ["taken", "deleted", "renamed", "restarted", "files read", "files read that have changed", "changes told"]
    {
        assert!(seen.get(what).is_some_and(|count| *count > 20), "too little happened: {seen:?}");
    }
}
