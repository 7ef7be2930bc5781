//! Which operation a program makes: mostly in a directory that its client leads, mostly one that makes sense.
use crate::world::World;
use cairn_model::{Caller, Create, Node, Operation, Piece, Publish, Punch, Setattr};

/// Inodes of the model that an operation may name.
struct Places {
    directories: Vec<u64>,
    files: Vec<u64>,
    entries: Vec<(u64, Vec<u8>)>,
}

impl World {
    pub fn caller(&mut self) -> Caller {
        match self.random.below(6) {
            0 => Caller { uid: 1000, gid: 1000, groups: vec![2000] },
            _ => Caller { uid: 0, gid: 0, groups: vec![] },
        }
    }

    fn places(&self, covered: impl Fn(u64) -> bool) -> Places {
        let nodes = || self.oracle.model.nodes.iter().filter(|(inode, _)| covered(**inode));
        let of = |is: fn(&Node) -> bool| nodes().filter(|(_, node)| is(node)).map(|(inode, _)| *inode).collect();
        let entries = nodes().flat_map(|(inode, node)| node.entries().into_keys().map(|name| (*inode, name)));
        Places { directories: of(Node::is_directory), files: of(Node::is_file), entries: entries.collect() }
    }

    /// In what the client leads under this number; 0: anywhere.
    pub fn choose(&mut self, client: usize, number: u64) -> Operation {
        let led = self.clients[client].led.clone();
        let places = self.places(|inode| number == 0 || led.of(inode) == Some(number));
        let session = self.clients[client].session;
        let parent = self.random.any(&places.directories).unwrap_or(1);
        let file = self.random.any(&places.files).unwrap_or(parent);
        let (above, called) = self.random.any(&places.entries).unwrap_or((parent, b"a".to_vec()));
        let name = vec![b'a' + self.random.below(8) as u8; 1 + self.random.below(2)];
        let mode = self.random.any(&[0o755, 0o777, 0o644, 0o700, 0o2775, 0o1777]).unwrap();
        match self.random.below(25) {
            0..=3 => Operation::Mkdir { parent, name, mode, layout: 0, umask: 0o022 },
            4..=9 => {
                let (exclusive, hold) = (self.random.once_in(2), self.random.once_in(4));
                Operation::Create(Create { parent, name, mode: 0o100_000 | mode, exclusive, hold, ..Create::default() })
            }
            10 => Operation::Symlink { parent, name, target: b"somewhere".to_vec() },
            11 => Operation::Link { inode: file, parent, name, replace: self.random.once_in(3) },
            12 | 13 => Operation::Unlink { parent: above, name: called },
            14 => Operation::Rmdir { parent: above, name: called },
            15 | 16 => {
                let flags = self.random.any(&[0, 0, 1, 2]).unwrap();
                Operation::Rename { parent: above, name: called, new_parent: parent, new_name: name, flags }
            }
            17 => {
                let (uid, size) = (self.random.once_in(4).then_some(1000), self.random.once_in(3).then_some(5000));
                let inode = if size.is_some() { file } else { parent };
                Operation::Setattr(Setattr { inode, mode: Some(mode), uid, size, ..Setattr::default() })
            }
            18 => {
                // The longest are more than a batch may have.
                let value = vec![7; if self.random.once_in(8) { 2_000 } else { self.random.below(300) }];
                Operation::SetXattr { inode: file, name: b"user.a".to_vec(), value, flags: 0 }
            }
            19 => Operation::RemoveXattr { inode: file, name: b"user.a".to_vec() },
            20 | 21 => Operation::Publish(self.publish(file, session)),
            22 => Operation::Punch(Punch { inode: file, offset: 100, length: 4096, extend: false, ..punch() }),
            23 => Operation::Hold { inode: file, write: self.random.once_in(2) },
            _ if self.random.once_in(20) => Operation::RemoveTree { parent: above, name: called },
            _ => Operation::Release { inode: file },
        }
    }

    fn publish(&mut self, inode: u64, written_by: u64) -> Publish {
        self.next_chunk += 1;
        let file_offset = 4096 * self.random.below(3) as u64;
        let length = 1 + self.random.below(9000) as u64;
        let piece = Piece { file_offset, length, pg: 1, index: self.next_chunk, chunk_offset: 0 };
        Publish { inode, pieces: vec![piece], written_by, ..Publish::default() }
    }
}

fn punch() -> Punch {
    Punch { inode: 0, offset: 0, length: 0, extend: false, if_data_version: 0, kill_privileges: false }
}
