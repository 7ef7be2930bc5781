//! The end of a run: everything is mended, members become equal, and what was acknowledged is there.

use cairn_replica_core::care::Care;
use cairn_replica_core::input::Input;

use super::{MS, World};
use crate::words::{crc, cut, shard_of_row};

/// So long members may take to become equal.
const PATIENCE: u64 = 120_000 * MS;

impl World {
    pub(super) fn converge(&mut self) {
        let (began, mut checked, mut scrubbed) = (self.now, self.now, self.now);
        while self.failure.is_none() {
            self.next();
            if self.now < checked + 250 * MS {
                continue;
            }
            checked = self.now;
            if self.now > scrubbed + 2_000 * MS {
                scrubbed = self.now;
                self.scrub();
            }
            let quiet = self.is_settled() && self.frees.is_empty() && !self.has_garbage();
            // What was missed is looked for after a pause.
            let late = self.now > began + 6_500 * MS;
            if quiet && late && self.clients.iter().all(|client| client.overwriting.is_none()) {
                return self.check_end();
            }
            if self.now > began + PATIENCE {
                return self.fails(format!("members do not become equal: {}", self.what_is_left()));
            }
        }
    }

    /// Every block is held against its checksum, and what nobody writes any more is closed.
    pub(super) fn scrub(&mut self) {
        for node in 0..self.nodes.len() {
            let chunks = &self.nodes[node].disk.now.chunks;
            let bad = chunks.iter().flat_map(|(index, chunk)| {
                let differs =
                    move |at: &usize| !chunk.is_freed(*at as u32) && crc(&chunk.blocks[*at]) != chunk.crcs[*at];
                (0..chunk.blocks.len()).filter(differs).map(|at| Care::Heal(*index, at as u32))
            });
            let bad: Vec<Care> = bad.collect();
            let open: Vec<u32> = chunks.iter().filter(|(_, chunk)| !chunk.sealed).map(|(index, _)| *index).collect();
            bad.into_iter().for_each(|care| self.step(node, Input::Found(care)));
            // Nobody appends any more.
            open.into_iter().for_each(|index| self.step(node, Input::Idle(index)));
        }
    }

    fn what_is_left(&self) -> String {
        let states: Vec<String> =
            self.manager.pg.members.iter().map(|member| format!("{} {}", member.disk, member.state)).collect();
        let mut text = format!("{} at {}, {} frees", states.join(", "), self.manager.pg.epoch, self.frees.len());
        for (place, node) in self.nodes.iter().enumerate() {
            let Some(replica) = &node.replica else { continue };
            let cares: Vec<Care> = replica.cares().take(4).collect();
            let (role, settled) = (replica.role(), replica.is_settled());
            text += &format!("; d{}: {role:?} settled {settled} {cares:?} {}", place + 1, replica.what_it_does());
        }
        text
    }

    fn check_end(&mut self) {
        let indices: Vec<u32> = self.model.chunks.keys().copied().collect();
        for index in indices {
            self.check_chunk(index);
        }
        self.counts.add("converged");
    }

    fn check_chunk(&mut self, index: u32) {
        let Some(chunk) = self.model.chunks.get(&index).cloned() else { return };
        for node in 0..self.nodes.len() {
            let id = self.nodes[node].id;
            let Some(here) = self.nodes[node].disk.now.chunks.get(&index).cloned() else {
                if !chunk.gone {
                    return self.fails(format!("chunk {index} is not on {id}, although it was acknowledged"));
                }
                continue;
            };
            if chunk.gone {
                if !self.budget.forgot {
                    return self.fails(format!("chunk {index} was freed, and is on {id}: {:?}", brief(&here)));
                }
                continue;
            }
            if here.length < chunk.length {
                let (has, wanted) = (here.length, chunk.length);
                return self.fails(format!("chunk {index} on {id} has {has} of {wanted} bytes that were acknowledged"));
            }
            for (at, named) in chunk.blocks.iter().enumerate() {
                let block = at as u32;
                if named.freed {
                    if !here.is_freed(block) && !self.budget.forgot {
                        return self.fails(format!("block {block} of chunk {index} was freed, and is on {id}"));
                    }
                    continue;
                }
                let found = here.blocks[at];
                if here.is_freed(block) || crc(&found) != here.crcs[at] {
                    let freed = here.is_freed(block);
                    return self.fails(format!("block {block} of chunk {index} is bad on {id} (freed: {freed})"));
                }
                if self.model.shards {
                    let row = shard_of_row(named.committed[0], node as u8);
                    if found != row {
                        return self.fails(format!("block {block} of chunk {index} on {id} is {found:?}, not {row:?}"));
                    }
                    continue;
                }
                let bytes = self.model.bytes_of(index, block);
                let first = self.nodes[0].disk.now.chunks.get(&index).and_then(|first| first.blocks.get(at)).copied();
                if !named.left && first.map(|first| cut(&first, bytes)) != Some(cut(&found, bytes)) {
                    return self
                        .fails(format!("block {block} of chunk {index} is {found:?} on {id} and {first:?} on d1"));
                }
                if !named.left && !self.model.settled(index, block, &found) {
                    return self.fails(format!(
                        "block {block} of chunk {index} on {id} is {found:?}, acknowledged was {named:?}"
                    ));
                }
            }
        }
    }
}

fn brief(chunk: &crate::disk::SimChunk) -> String {
    format!("{} bytes, sealed {}, freed {:#b}", chunk.length, chunk.sealed, chunk.freed)
}
