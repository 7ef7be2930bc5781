//! What a step asks for: an operation with arguments that often, but not always, make sense in the present state.
use super::*;

impl Pair {
    pub(super) fn caller(&self, who: u8) -> Caller {
        match who % 8 {
            0..=3 => Caller { uid: 0, gid: 0, groups: vec![] },
            4 | 5 => Caller { uid: 1000, gid: 1000, groups: vec![2000] },
            6 => Caller { uid: 1001, gid: 1001, groups: vec![1000, 2000] },
            _ => Caller { uid: 1002, gid: 1002, groups: vec![] },
        }
    }

    /// Mostly a directory that is there.
    pub(super) fn directory(&self, number: u32) -> u64 {
        let all: Vec<u64> = self.model.nodes.iter().filter(|(_, n)| n.is_directory()).map(|(i, _)| *i).collect();
        match number % 16 {
            15 => self.any_inode(number / 16),
            _ => all[(number / 16) as usize % all.len()],
        }
    }

    /// Mostly an entry that is there.
    pub(super) fn entry(&self, directory: u32, name: u32) -> (u64, Vec<u8>) {
        let nodes = self.model.nodes.iter();
        let all: Vec<(u64, Vec<u8>)> =
            nodes.flat_map(|(inode, node)| node.entries().into_keys().map(|name| (*inode, name))).collect();
        if directory % 8 == 7 || all.is_empty() {
            return (self.directory(directory / 8), self.name(name));
        }
        all[(directory / 8) as usize % all.len()].clone()
    }

    /// An inode that was given at some time, or the next one.
    pub(super) fn any_inode(&self, number: u32) -> u64 {
        u64::from(number) % (self.model.next_inode + 1)
    }

    pub(super) fn file(&self, number: u32) -> u64 {
        let all: Vec<u64> = self.model.nodes.iter().filter(|(_, n)| n.is_file()).map(|(i, _)| *i).collect();
        match number % 16 {
            15 => self.any_inode(number / 16),
            _ if all.is_empty() => 1,
            _ => all[(number / 16) as usize % all.len()],
        }
    }

    pub(super) fn name(&self, number: u32) -> Vec<u8> {
        match number % 64 {
            60 => b"..".to_vec(),
            61 => b"a/b".to_vec(),
            62 => vec![b'n'; 256],
            63 => vec![0xff; 255],
            n => vec![b'a' + (n % 6) as u8],
        }
    }

    pub(super) fn mode(&self, number: u32) -> u32 {
        [
            0o755, 0o777, 0o644, 0o700, 0o1777, 0o2775, 0o4755, 0o6711, 0o000, 0o2664, 0o070, 0o111, 0o777, 0o777,
            0o1777, 0o666,
        ][number as usize % 16]
    }

    pub(super) fn umask(&self, number: u32) -> u32 {
        [0, 0o022, 0o077, 0o7002][number as usize % 4]
    }

    /// A list that mostly can be set.
    pub(super) fn acl(&self, n: &[u32; 6]) -> Vec<u8> {
        let perm = |shift: u32| (n[3] >> shift & 7) as u16;
        let mut list = vec![(1, perm(0), u32::MAX), (4, perm(3), 7), (32, perm(6), u32::MAX)];
        if n[4].is_multiple_of(2) {
            list.push((16, perm(9) | 4, u32::MAX));
            list.push((2, perm(12), 1000 + n[4] / 2 % 3));
            list.push((8, perm(15), [1000, 2000, 1002][n[4] as usize / 8 % 3]));
            list.push((2, perm(18), 1001));
        }
        list.sort_by_key(|entry: &AclEntry| entry.0);
        match n[5] % 32 {
            0 => list.clear(),
            1 => list.retain(|entry| entry.0 != 16),
            2 => list.reverse(),
            3 => list[0].1 = 9,
            _ => {}
        }
        let mut bytes = acl_bytes(&list);
        match n[5] % 64 {
            4 => bytes.clear(),
            5 => bytes[0] = 1,
            6 => bytes.truncate(bytes.len() - 1),
            _ => {}
        }
        bytes
    }

    pub(super) fn layout(&self, number: u32) -> u64 {
        if number % 32 == 31 { 999_999 } else { u64::from(number.is_multiple_of(3)) * 2 }
    }

    /// Pieces of a file that a well-behaved writer could publish, and a few that it could not.
    pub(super) fn pieces(&mut self, inode: u64, numbers: &[u32]) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        for i in 0..1 + numbers[0] % 3 {
            let piece = self.piece(inode, numbers[1].rotate_left(11 * i), numbers[2].rotate_left(7 * i));
            pieces.extend(piece.filter(|piece| !pieces.iter().any(|other| is_elsewhere(piece, other))));
        }
        pieces
    }

    pub(super) fn piece(&mut self, inode: u64, number: u32, other: u32) -> Option<Piece> {
        let unit = [1, 100, 4096, 1000][(number % 4) as usize];
        let file_offset = u64::from(number / 4 % 13) * unit;
        let length = if other % 64 == 63 { 0 } else { [1, 50, 4096, 5000, 12288][(other % 16 % 5) as usize] };
        let old = self.model.nodes.get(&inode).map(|n| n.pieces()).unwrap_or_default();
        let fresh =
            Piece { file_offset, length, pg: 1 + other % 2, index: self.next_chunk, chunk_offset: file_offset % 4096 };
        self.next_chunk += 1;
        match (other / 16 % 8, old.first(), old.last()) {
            // What is there, again.
            (0, Some(first), _) => Some(*first),
            // Going on in the same chunk, if the block at its end is not given back yet.
            (1 | 2, _, Some(last)) => {
                let next = Piece {
                    file_offset: last.end(),
                    length: length.max(1),
                    chunk_offset: last.chunk_offset + last.length,
                    ..*last
                };
                let clean = (0..next.length.div_ceil(4096) + 1)
                    .all(|i| !self.model.free.contains(&(next.pg, next.index, next.chunk_offset / 4096 + i)));
                (clean && !self.is_used_elsewhere(&next)).then_some(next)
            }
            // Another part of the file in the free rest of a block of the same chunk.
            (3, Some(first), _) if first.length < 3000 && first.chunk_offset % 4096 < 1000 => {
                let inside = first.chunk_offset % 4096 + first.length;
                let next = Piece {
                    file_offset: 5 * 4096 + inside,
                    length: 20,
                    chunk_offset: first.chunk_offset + first.length,
                    ..*first
                };
                let clean = !self.model.free.contains(&(next.pg, next.index, next.chunk_offset / 4096));
                (clean && !self.is_used_elsewhere(&next)).then_some(next)
            }
            (4, _, _) if other & 0xf000 == 0 => Some(Piece { chunk_offset: fresh.chunk_offset + 1, ..fresh }),
            _ => Some(fresh),
        }
    }

    /// The bytes of a chunk belong to one place of one file.
    pub(super) fn is_used_elsewhere(&self, piece: &Piece) -> bool {
        let range = piece.chunk_offset..piece.chunk_offset + piece.length;
        self.model
            .nodes
            .values()
            .flat_map(|n| n.bytes().iter().flatten().copied().collect::<Vec<_>>())
            .any(|(pg, index, offset)| (pg, index) == (piece.pg, piece.index) && range.contains(&offset))
    }

    pub(super) fn operation(&mut self, step: &Step, session: u64) -> Operation {
        let n = step.numbers;
        // Now and then what another session wrote, one that ended among them, or nobody says who.
        let written_by =
            if (step.session / 3).is_multiple_of(16) { u64::from(step.who) % self.next_session } else { session };
        let (parent, name) = (self.directory(n[0]), self.name(n[1]));
        match step.kind % 51 {
            0..=4 => {
                let (mode, layout) = (self.mode(n[2]), self.layout(n[3]));
                Operation::Mkdir { parent, name, mode, layout, umask: self.umask(n[4]) }
            }
            5..=9 => Operation::Create(Create { written_by, ..self.create(parent, name, &n) }),
            10 => Operation::Symlink { parent, name, target: vec![b't'; (n[2] % 4) as usize] },
            11 => Operation::CreateUnnamed { parent, mode: self.mode(n[2]), layout: 0, umask: self.umask(n[4]) },
            12..=14 => {
                let inode = if n[2].is_multiple_of(4) { self.any_inode(n[3]) } else { self.file(n[3]) };
                Operation::Link { inode, parent, name, replace: n[4].is_multiple_of(3) }
            }
            15..=19 => {
                let (parent, name) = self.entry(n[0], n[1]);
                match step.kind % 5 {
                    0..=2 => Operation::Unlink { parent, name },
                    3 => Operation::Rmdir { parent, name },
                    _ => Operation::RemoveTree { parent, name },
                }
            }
            20..=24 => {
                let (parent, name) = self.entry(n[0], n[1]);
                let (new_parent, new_name) = match n[5] % 4 {
                    0 => self.entry(n[2], n[3]),
                    _ => (self.directory(n[2]), self.name(n[3])),
                };
                Operation::Rename { parent, name, new_parent, new_name, flags: [0, 0, 1, 2, 2, 3][n[4] as usize % 6] }
            }
            25..=29 => Operation::Setattr(self.setattr(&n)),
            30 | 31 | 44..=47 => self.xattr(&n),
            32..=35 => {
                let inode = self.file(n[0]);
                let pieces = self.pieces(inode, &n[1..]);
                Operation::Publish(Publish { written_by, ..self.publish(inode, pieces, &n) })
            }
            48 | 49 => {
                let inode = if n[0].is_multiple_of(9) { 0 } else { self.directory(n[0]) };
                Operation::SetQuota { inode, limited: !n[1].is_multiple_of(3) }
            }
            40 | 41 => Operation::Punch(self.punch(&n)),
            42 | 43 => Operation::SetLock(SetLock {
                inode: if n[0].is_multiple_of(3) { self.file(n[0]) } else { ROOT },
                owner: u64::from(n[1] % 2),
                flock: n[1] % 8 > 4,
                write: [None, Some(false), Some(false), Some(true)][n[2] as usize % 4],
                start: u64::from(n[3]) % LOCK_BYTES,
                end: u64::from(n[4]) % LOCK_BYTES,
            }),
            36 | 37 => {
                let inode = if n[1].is_multiple_of(4) { self.any_inode(n[0]) } else { self.file(n[0]) };
                Operation::Hold { inode, write: n[2].is_multiple_of(2) }
            }
            _ => {
                let held: Vec<u64> = self.model.holds.keys().map(|(_, inode)| *inode).collect();
                let inode = if held.is_empty() { self.file(n[0]) } else { held[n[0] as usize % held.len()] };
                Operation::Release { inode }
            }
        }
    }

    pub(super) fn create(&mut self, parent: u64, name: Vec<u8>, n: &[u32; 6]) -> Create {
        let kind = [0, 0, 0, 0, 0o100_000, 0o010_000, 0o140_000, 0o020_000, 0o040_000, 0o120_000][n[2] as usize % 10];
        let contents = n[3].is_multiple_of(3);
        let pieces = if contents { self.pieces(0, &n[3..]) } else { Vec::new() };
        Create {
            parent,
            name,
            mode: kind | self.mode(n[4]),
            rdev: n[5] % 3,
            layout: self.layout(n[5] / 3),
            exclusive: (n[3] / 3).is_multiple_of(2),
            replace: (n[3] / 6).is_multiple_of(4),
            hold: (n[3] / 24).is_multiple_of(3),
            size: if (n[4] / 12).is_multiple_of(4) { u64::from(n[4] % 20_000) } else { 0 },
            pieces,
            mtime: TIMES[n[5] as usize / 16 % 3],
            written_by: 0,
            umask: self.umask(n[1] / 64),
            owner: ((n[5] / 48).is_multiple_of(5)).then_some((1000 + n[5] / 256 % 2, 1000 * (1 + n[5] / 512 % 2))),
        }
    }

    pub(super) fn publish(&self, inode: u64, pieces: Vec<Piece>, n: &[u32; 6]) -> Publish {
        let version = self.model.nodes.get(&inode).map_or(0, |node| node.data_version);
        Publish {
            inode,
            pieces: if n[4].is_multiple_of(9) { Vec::new() } else { pieces },
            size: if (n[4] / 16).is_multiple_of(3) { u64::from(n[5] % 30_000) } else { 0 },
            set_size: (n[4] / 64).is_multiple_of(8),
            if_data_version: [0, 0, 0, version, version, version + 1][n[5] as usize / 65536 % 6],
            mtime: TIMES[n[4] as usize / 256 % 3],
            written_by: 0,
            if_size: (n[5] / 1024).is_multiple_of(5).then(|| self.size(inode) + u64::from(n[5] / 8192 % 3 == 2)),
            kill_privileges: (n[5] / 2048).is_multiple_of(4),
        }
    }

    pub(super) fn size(&self, inode: u64) -> u64 {
        self.model.nodes.get(&inode).map_or(0, |node| node.bytes().len() as u64)
    }

    pub(super) fn punch(&self, n: &[u32; 6]) -> Punch {
        let inode = self.file(n[0]);
        let version = self.model.nodes.get(&inode).map_or(0, |node| node.data_version);
        let unit = [1, 100, 4096, 1000][n[1] as usize % 4];
        Punch {
            inode,
            offset: u64::from(n[1] / 4 % 13) * unit,
            length: [0, 1, 100, 4096, 5000, 12288, u64::MAX, 4096][n[2] as usize % 8],
            extend: n[3].is_multiple_of(2),
            if_data_version: [0, 0, version, version + 1][n[4] as usize % 4],
            kill_privileges: n[5].is_multiple_of(3),
        }
    }

    pub(super) fn setattr(&self, n: &[u32; 6]) -> Setattr {
        let some = |bit: u32, value: u32| (n[1] >> (3 * bit) & 3 == 0).then_some(value);
        let id = |number: u32| [0, 1000, 1001, 2000][number as usize % 4];
        Setattr {
            inode: if n[0].is_multiple_of(3) { self.any_inode(n[0] / 3) } else { self.file(n[0]) },
            mode: some(0, self.mode(n[2])),
            uid: some(1, id(n[3])),
            gid: some(2, id(n[3] / 4)),
            size: some(3, n[4] % 20_000).map(u64::from),
            atime: some(4, n[5]).map(u64::from),
            mtime: some(5, n[5] / 7).map(u64::from),
            atime_now: n[1] >> 18 & 3 == 0,
            mtime_now: n[1] >> 20 & 3 == 0,
            kill_privileges: n[1] >> 25 & 7 == 0,
            layout: (n[1] >> 22 & 7 == 0).then_some([2, 0, 999_999][n[5] as usize % 3]),
        }
    }

    pub(super) fn xattr(&self, n: &[u32; 6]) -> Operation {
        let inode = self.any_inode(n[0]);
        let names = ["user.a", "user.b", "trusted.c", "security.capability", "system.e", "user."];
        let acls = [ACCESS, ACCESS, ACCESS, DEFAULT, DEFAULT, DEFAULT];
        let name = match n[1] % 12 {
            at @ 0..=5 => names[at as usize].as_bytes().to_vec(),
            at => acls[at as usize - 6].to_vec(),
        };
        if name.starts_with(b"system.posix") && !n[2].is_multiple_of(7) {
            return Operation::SetXattr { inode, name, value: self.acl(n), flags: n[4] % 3 };
        }
        if n[2].is_multiple_of(3) {
            Operation::RemoveXattr { inode, name }
        } else {
            Operation::SetXattr { inode, name, value: vec![7; n[3] as usize % 300], flags: n[4] % 4 }
        }
    }
}

/// Whether two pieces put some of the same bytes of a chunk at two places of a file, which no client does.
fn is_elsewhere(one: &Piece, other: &Piece) -> bool {
    let apart = |piece: &Piece| piece.file_offset.wrapping_sub(piece.chunk_offset);
    (one.pg, one.index) == (other.pg, other.index)
        && apart(one) != apart(other)
        && one.chunk_offset < other.chunk_offset + other.length
        && other.chunk_offset < one.chunk_offset + one.length
}
