//! Snapshots of directories among random operations: each directory shows its own and the volume's, what is read there
//! is the model of the moment, whatever was moved, linked or removed since, into it or out of it; files and trees that
//! are cloned out of one are what they were.
use super::*;
use cairn_types::EXTENT_SHARED;
use cairn_wire::meta::{CloneRangeRequest, CloneRangeResponse};

/// Where the list of a directory is, in its number.
const LISTING: u64 = 0x7fff << 48;
/// Snapshots of directories at a time.
const MANY: usize = 5;
/// Larger trees are not cloned, and none any more when there are more inodes.
const TREE_MAX: usize = 10;
const NODES_MAX: usize = 40;

/// What is below a directory, and it itself.
fn below(model: &Model, directory: u64) -> BTreeSet<u64> {
    let (mut found, mut next) = (BTreeSet::from([directory]), vec![directory]);
    while let Some(inode) = next.pop() {
        let entries = model.nodes.get(&inode).map(|node| node.entries()).unwrap_or_default();
        next.extend(entries.into_values().filter(|entry| found.insert(*entry)));
    }
    found
}

fn names_of(model: &Model, directories: &BTreeSet<u64>, inode: u64) -> usize {
    let of = |directory: &u64| model.nodes.get(directory).map(|node| node.entries()).unwrap_or_default();
    directories.iter().flat_map(|directory| of(directory).into_values()).filter(|entry| *entry == inode).count()
}

impl Taken {
    pub(super) fn with_directories() -> Self {
        Taken { of_directories: true, ..Taken::default() }
    }

    pub(super) fn directory_step(&mut self, pair: &mut Pair, step: &Step) {
        let n = step.numbers;
        match n[1] % 8 {
            0..=2 if self.count(true) < MANY => self.take_of(pair, step),
            0..=3 => {
                let Some((number, name)) = self.some(n[2], true) else { return };
                // A name beside the number says nothing.
                let request = DeleteSnapshotRequest { header: self.header(), name: name.into(), number };
                pair.driver.mutate::<Empty>(Opcode::DeleteSnapshot, &request).unwrap();
                self.moments.remove(&number);
                if n[3].is_multiple_of(2) {
                    pair.reclaim(n[4]);
                }
                self.note("a directory's deleted");
            }
            4 => self.rename_of(pair, step),
            5 | 6 => self.clone_some_file(pair, step),
            _ => self.clone_tree(pair, step),
        }
    }

    /// Whether one of a directory (0: of the volume) would be shown beside one of the same name.
    fn has_namesake(&self, directory: u64, name: &str, but: u64) -> bool {
        let meets = |of: u64| of == directory || of == 0 || directory == 0;
        self.moments.iter().any(|(number, of)| *number != but && of.name == name && meets(of.directory))
    }

    fn take_of(&mut self, pair: &mut Pair, step: &Step) {
        let n = step.numbers;
        let directory = pair.directory(n[2]);
        let name = format!("d{}", n[3] % 3);
        let request = CreateSnapshotRequest { header: self.header(), name: name.clone().into(), directory };
        let answer: Answer<CreateSnapshotResponse> = pair.driver.mutate(Opcode::CreateSnapshot, &request);
        let of = if directory == ROOT { 0 } else { directory };
        let is_there = pair.model.nodes.get(&directory).is_some_and(cairn_model::Node::is_directory)
            && pair.model.links(directory) > 0;
        match answer {
            // Zero is the volume.
            Ok(answer) if directory == 0 || is_there => {
                assert!(answer.number > 0 && !self.has_namesake(of, &name, 0));
                self.moments.insert(answer.number, Moment { name, directory: of, model: pair.model.clone() });
                self.note(if of == 0 { "taken" } else { "a directory's taken" });
            }
            Err(ErrorCode::Exists) if directory == 0 || is_there => {
                assert!(self.has_namesake(of, &name, 0), "{name} of {of}");
                self.note("name refused");
            }
            answer => {
                assert!(directory != 0 && !is_there && answer.is_err(), "{directory}: {answer:?}");
                self.note("refused without a directory");
            }
        }
    }

    fn rename_of(&mut self, pair: &mut Pair, step: &Step) {
        let Some((number, name)) = self.some(step.numbers[2], true) else { return };
        let new = format!("d{}", step.numbers[3] % 4);
        let request =
            RenameSnapshotRequest { header: self.header(), name: name.into(), new_name: new.clone().into(), number };
        let answer = pair.driver.mutate::<Empty>(Opcode::RenameSnapshot, &request);
        let is_taken = self.has_namesake(self.moments[&number].directory, &new, number);
        match answer {
            Err(ErrorCode::Exists) => assert!(is_taken || self.moments[&number].name == new),
            answer => {
                answer.unwrap();
                assert!(!is_taken);
                self.moments.get_mut(&number).expect("it was found").name = new;
                self.note("a directory's renamed");
            }
        }
    }

    fn as_root(&mut self, pair: &mut Pair, operation: Operation) -> Reply {
        self.operations += 1;
        let caller = Caller { uid: 0, gid: 0, groups: vec![] };
        let now = pair.driver.now + 10;
        pair.run(Request { caller, session: SESSION, slot: 1, sequence: self.operations, now }, operation)
    }

    /// Where a snapshot is read, in numbers of inodes.
    fn outward(&self, reader: &Driver, number: u64) -> u64 {
        let moment = &self.moments[&number];
        let directory = moment.directory.max(ROOT);
        reader.lookup(LISTING | directory, &moment.name).unwrap().inode - directory
    }

    /// A directory of now in which something new can be made.
    fn some_directory(pair: &Pair, number: u32) -> u64 {
        let is_there = |inode: &u64| pair.model.nodes[inode].is_directory() && pair.model.links(*inode) > 0;
        let all: Vec<u64> = pair.model.nodes.keys().copied().filter(is_there).collect();
        all[number as usize % all.len()]
    }

    /// A file comes back beside what there is, or in place of something.
    fn clone_some_file(&mut self, pair: &mut Pair, step: &Step) {
        let n = step.numbers;
        let Some((number, _)) = self.some(n[2], !n[2].is_multiple_of(8)) else { return };
        let moment = &self.moments[&number];
        let all: Vec<u64> = below(&moment.model, moment.directory.max(ROOT))
            .into_iter()
            .filter(|inode| moment.model.nodes[inode].is_file())
            .collect();
        if all.is_empty() || pair.model.nodes.len() > NODES_MAX {
            return;
        }
        let source = all[n[3] as usize % all.len()];
        let parent = Self::some_directory(pair, n[4]);
        let Some(_) = self.clone_file(pair, number, source, parent, b"new") else { return };
        let (new_parent, new_name) = match n[5] % 2 {
            0 => (Self::some_directory(pair, n[5] / 2), format!("c{}", n[5] / 64 % 4).into_bytes()),
            _ => pair.entry(n[5] / 2, n[4]),
        };
        let moved = Operation::Rename { parent, name: b"new".to_vec(), new_parent, new_name, flags: 0 };
        match self.as_root(pair, moved) {
            Ok(_) => self.note("files cloned out"),
            // What it was to replace is a directory, for example.
            Err(_) => _ = self.as_root(pair, Operation::Unlink { parent, name: b"new".to_vec() }).unwrap(),
        }
        pair.reclaim(n[0]);
    }

    fn clone_file(&mut self, pair: &mut Pair, number: u64, source: u64, parent: u64, name: &[u8]) -> Option<u64> {
        let node = self.moments[&number].model.nodes[&source].clone();
        let create = Create {
            parent,
            name: name.to_vec(),
            mode: node.mode,
            layout: node.layout,
            exclusive: true,
            ..Create::default()
        };
        let made = self.as_root(pair, Operation::Create(create)).ok()??;
        let size = node.bytes().len() as u64;
        if size == 0 {
            return Some(made.inode);
        }
        let before = pair.driver.extents(source);
        let request = CloneRangeRequest {
            header: self.header(),
            source: self.outward(&pair.driver, number) + source,
            inode: made.inode,
            length: size,
            ..CloneRangeRequest::default()
        };
        let answer: CloneRangeResponse = pair.driver.mutate(Opcode::CloneRange, &request).unwrap();
        let is_simple = |node: Option<&cairn_model::Node>| node.is_none_or(has_one_place_a_block);
        if is_simple(Some(&node)) && is_simple(pair.model.nodes.get(&source)) {
            assert_eq!(answer.length, size, "nothing here that cannot be shared");
        }
        if answer.length > 0 {
            pair.model.clone_in(made.inode, 0, &node.bytes()[..answer.length as usize], pair.driver.now);
            self.cloned += 1;
        }
        let target = attributes(&answer.attributes.unwrap());
        assert_eq!(target, pair.model.attributes(made.inode), "a clone out of a snapshot");
        if let Some(now) = pair.model.nodes.get_mut(&source) {
            // What is shared from now on, clients ask for again.
            let rose = attributes(&pair.driver.getattr(source).unwrap()).data_version - now.data_version;
            assert!(rose <= 1);
            assert!(rose == 1 || pair.driver.extents(source) == before, "nobody hears that {source} is shared now");
            now.data_version += rose;
            now.generation += rose;
            *self.seen.entry("files of now that became shared").or_default() += rose;
        }
        Some(made.inode)
    }

    /// All of a directory as it was, under a new name.
    fn clone_tree(&mut self, pair: &mut Pair, step: &Step) {
        let n = step.numbers;
        let Some((number, _)) = self.some(n[2], true) else { return };
        let top = self.moments[&number].directory;
        let all = below(&self.moments[&number].model, top);
        if all.len() > TREE_MAX || pair.model.nodes.len() > NODES_MAX {
            return;
        }
        self.next += 1;
        let (parent, name) = (Self::some_directory(pair, n[3]), format!("t{}", self.next).into_bytes());
        let mut made: BTreeMap<u64, u64> = BTreeMap::new();
        let mut left = vec![(parent, name, top)];
        while let Some((parent, name, inode)) = left.pop() {
            let node = self.moments[&number].model.nodes[&inode].clone();
            let new = match made.get(&inode) {
                Some(first) => {
                    let link = Operation::Link { inode: *first, parent, name, replace: false };
                    self.as_root(pair, link).unwrap();
                    self.note("links cloned");
                    continue;
                }
                None => self.clone_node(pair, number, (inode, &node), parent, name),
            };
            made.insert(inode, new);
            left.extend(node.entries().into_iter().map(|(name, inode)| (new, name, inode)));
        }
        assert_eq!(made.len(), all.len());
        self.note("trees cloned");
        if made.len() > 2 {
            self.note("trees with something in them cloned");
        }
        pair.reclaim(n[0]);
    }

    fn clone_node(
        &mut self,
        pair: &mut Pair,
        number: u64,
        (inode, node): (u64, &cairn_model::Node),
        parent: u64,
        name: Vec<u8>,
    ) -> u64 {
        let operation = match &node.body {
            _ if node.is_file() => return self.clone_file(pair, number, inode, parent, &name).expect("a new name"),
            _ if node.is_directory() => {
                Operation::Mkdir { parent, name, mode: node.mode & 0o7777, layout: node.layout, umask: 0 }
            }
            cairn_model::Body::Symlink(target) => Operation::Symlink { parent, name, target: target.clone() },
            _ => Operation::Create(Create { parent, name, mode: node.mode, exclusive: true, ..Create::default() }),
        };
        self.as_root(pair, operation).unwrap().expect("attributes").inode
    }

    /// What each directory shows is what it was; what is shared is known for it.
    pub(super) fn compare_directories(&mut self, reader: &Driver, now: &Model) {
        let moments = std::mem::take(&mut self.moments);
        for (number, Moment { name, directory, model }) in moments.iter().filter(|(_, of)| of.directory != 0) {
            let root = reader.lookup(LISTING | directory, name).unwrap().inode;
            let inside = below(model, *directory);
            compare_at(reader, model, inside.iter().copied(), root - directory, &mut self.seen);
            assert_eq!(reader.lookup(root, "..").unwrap().inode, root, "nothing is above it");
            let is_there = now.nodes.contains_key(directory) && now.links(*directory) > 0;
            if !is_there {
                self.note("of a directory that is gone");
                continue;
            }
            assert_eq!(reader.lookup(*directory, ".snapshots").unwrap().inode, LISTING | directory);
            self.note_moves(model, &inside, now, &below(now, *directory));
            assert!(reader.getattr(root).is_ok(), "{number}");
        }
        self.moments = moments;
        for inode in now.nodes.iter().filter(|(_, node)| node.is_directory()).map(|(inode, _)| *inode) {
            if inode != ROOT && now.links(inode) > 0 {
                assert_eq!(reader.names(LISTING | inode), self.shown(inode), "what {inode} shows");
            }
        }
        compare_shared(reader, now);
    }

    /// What the random steps have to reach.
    fn note_moves(&mut self, then: &Model, inside: &BTreeSet<u64>, now: &Model, inside_now: &BTreeSet<u64>) {
        let is_named = |model: &Model, inode: &u64| model.nodes.contains_key(inode) && model.links(*inode) > 0;
        for inode in inside.difference(inside_now) {
            self.note(if is_named(now, inode) { "moved out" } else { "removed" });
        }
        for inode in inside_now.difference(inside) {
            self.note(if is_named(then, inode) { "moved in" } else { "made in it" });
        }
        for inode in inside_now.iter().filter(|inode| !now.nodes[*inode].is_directory()) {
            let is_outside_too = (names_of(now, inside_now, *inode) as u32) < now.links(*inode);
            let was_inside = inside.contains(inode);
            match (is_outside_too, was_inside) {
                (true, true) => self.note("linked out"),
                (true, false) => self.note("linked in"),
                _ => {}
            }
        }
    }
}

/// No part of a block lies at two places of the file.
fn has_one_place_a_block(node: &cairn_model::Node) -> bool {
    let mut apart = BTreeMap::new();
    node.pieces().iter().all(|piece| {
        let here = piece.file_offset.wrapping_sub(piece.chunk_offset);
        let blocks = piece.chunk_offset / 4096..(piece.chunk_offset + piece.length).div_ceil(4096);
        blocks.into_iter().all(|block| *apart.entry((piece.pg, piece.index, block)).or_insert(here) == here)
    })
}

/// A block that two files name is told to be shared by both, or one of them would overwrite it in place.
fn compare_shared(reader: &Driver, now: &Model) {
    let mut alone: BTreeMap<(u32, u32, u64), u64> = BTreeMap::new();
    let mut shared: BTreeMap<(u32, u32, u64), u64> = BTreeMap::new();
    for inode in now.nodes.iter().filter(|(_, node)| node.is_file()).map(|(inode, _)| *inode) {
        for extent in reader.extents(inode).unwrap() {
            let list = if extent.flags & EXTENT_SHARED != 0 { &mut shared } else { &mut alone };
            for block in extent.chunk_offset / 4096..(extent.chunk_offset + extent.length).div_ceil(4096) {
                let other = list.insert((extent.pg, extent.index, block), inode);
                let is_shared = extent.flags & EXTENT_SHARED != 0;
                assert!(is_shared || other.is_none_or(|other| other == inode), "{inode} and {other:?} share unsaid");
            }
        }
    }
    let both = alone.iter().find(|(block, inode)| shared.get(*block).is_some_and(|other| other != *inode));
    assert_eq!(both, None, "a block of two files of which one does not know it");
}

/// A directory shows what came into it later, or has lost from its past what was moved, linked or removed since; or a
/// clone out of it is not what was there, or is changed with its source.
#[test]
fn snapshots_of_directories_and_model_agree() {
    let wanted = [
        "taken",
        "deleted",
        "a directory's taken",
        "a directory's deleted",
        "a directory's renamed",
        "name refused",
        "refused without a directory",
        "restarted",
        "of a directory that is gone",
        "moved out",
        "moved in",
        "linked out",
        "linked in",
        "removed",
        "made in it",
        "files read",
        "files read that have changed",
        "files cloned out",
        "files of now that became shared",
        "trees with something in them cloned",
    ];
    run_cases(cases() / 2, |steps| run_all(steps, Taken::with_directories()), &wanted, 5);
}
