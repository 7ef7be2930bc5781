//! What a client asks for.
use super::world::World;
use cairn_model::{Create, Operation, Setattr};

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % end
    }
}

impl World {
    fn directory(&mut self) -> u64 {
        let nodes = self.model.nodes.iter();
        let all: Vec<u64> = nodes.filter(|(_, node)| node.is_directory()).map(|(inode, _)| *inode).collect();
        all[self.rng.below(all.len() as u64) as usize]
    }

    fn file(&mut self) -> u64 {
        let nodes = self.model.nodes.iter();
        let all: Vec<u64> = nodes.filter(|(_, node)| node.is_file()).map(|(inode, _)| *inode).collect();
        if all.is_empty() { 1 } else { all[self.rng.below(all.len() as u64) as usize] }
    }

    fn name(&mut self) -> Vec<u8> {
        vec![b'a' + self.rng.below(5) as u8]
    }

    /// Mostly one that is there.
    fn entry(&mut self) -> (u64, Vec<u8>) {
        let nodes = self.model.nodes.iter();
        let all: Vec<(u64, Vec<u8>)> =
            nodes.flat_map(|(inode, node)| node.entries().into_keys().map(|name| (*inode, name))).collect();
        if all.is_empty() || self.rng.below(8) == 0 {
            return (self.directory(), self.name());
        }
        all[self.rng.below(all.len() as u64) as usize].clone()
    }

    /// Of a directory, mostly.
    fn directory_entry(&mut self) -> (u64, Vec<u8>) {
        let nodes = self.model.nodes.iter();
        let all = nodes.flat_map(|(inode, node)| node.entries().into_iter().map(|(name, there)| (*inode, name, there)));
        let all: Vec<(u64, Vec<u8>)> = all
            .filter(|(_, _, there)| self.model.nodes[there].is_directory())
            .map(|(parent, name, _)| (parent, name))
            .collect();
        if all.is_empty() || self.rng.below(8) == 0 {
            return self.entry();
        }
        all[self.rng.below(all.len() as u64) as usize].clone()
    }

    fn mode(&mut self) -> u32 {
        [0o777, 0o777, 0o755, 0o1777, 0o2775, 0o700][self.rng.below(6) as usize]
    }

    pub fn choose(&mut self, client: usize) -> Operation {
        let written_by = self.session_of(client);
        match self.rng.below(100) {
            0..24 => {
                let (parent, name, mode) = (self.directory(), self.name(), self.mode());
                Operation::Mkdir { parent, name, mode, layout: 0, umask: 0 }
            }
            24..38 => {
                let (parent, name) = (self.directory(), self.name());
                let exclusive = self.rng.below(2) == 0;
                let create = Create { parent, name, mode: 0o100_666, exclusive, written_by, ..Create::default() };
                Operation::Create(create)
            }
            38..42 => Operation::Symlink { parent: self.directory(), name: self.name(), target: b"x/y".to_vec() },
            42..50 => {
                let (inode, parent, name) = (self.file(), self.directory(), self.name());
                Operation::Link { inode, parent, name, replace: self.rng.below(3) == 0 }
            }
            50..57 => {
                let (parent, name) = self.entry();
                Operation::Unlink { parent, name }
            }
            57..62 => {
                let (parent, name) = self.directory_entry();
                Operation::RemoveTree { parent, name }
            }
            62..67 => {
                let (parent, name) = self.entry();
                Operation::Rmdir { parent, name }
            }
            67..95 => {
                let (parent, name) = self.entry();
                let (new_parent, new_name) =
                    if self.rng.below(2) == 0 { self.entry() } else { (self.directory(), self.name()) };
                Operation::Rename { parent, name, new_parent, new_name, flags: self.rng.below(4) as u32 % 3 }
            }
            _ => {
                let inode = if self.rng.below(2) == 0 { self.directory() } else { self.file() };
                Operation::Setattr(Setattr { inode, mode: Some(self.mode()), ..Setattr::default() })
            }
        }
    }
}
