//! [`Presence`]: which members of its placement group have how much of each chunk, as they listed it, and whether that
//! is enough for what a version of the namespace names.
//!
//! For a range of chunks (in the order of placement group and index) that fits into memory: 12 bytes a chunk and 2 a
//! member. A version that is checked is taken *before* the lists: what it names was on the members when it was
//! published, so what is not listed is gone, or was freed since, which the caller sees in the present version.
use crate::block_set::BlockSet;
use crate::named::Named;
use std::collections::{BTreeMap, BTreeSet};

/// A member of which nothing is known.
const UNKNOWN: u16 = u16::MAX;

/// What is known of a placement group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Group {
    members: u8,
    /// That a read needs.
    needed: u8,
    /// Of which nothing is known, where a chunk is not listed at all.
    unknown: u8,
}

#[derive(Clone, Copy)]
struct Row {
    pg: u32,
    index: u32,
    /// Where its members' lengths begin.
    at: u32,
}

/// Lists of members for a range of chunks.
#[derive(Default)]
pub struct Presence {
    groups: BTreeMap<u32, Group>,
    /// Ascending.
    rows: Vec<Row>,
    /// In blocks, a member after the other.
    lengths: Vec<u16>,
    /// Blocks that a member that serves has freed, of chunks where there are some.
    freed: BTreeMap<(u32, u32), BlockSet>,
    /// Bad blocks that wait until they can be healed: member and block, of chunks where there are some.
    bad: BTreeMap<(u32, u32), Vec<(u8, u32)>>,
    /// Groups beyond this one may be too new to be known.
    newest: u32,
    /// The range: from here on …
    from: (u32, u32),
    /// … up to here, which is not in it any more; `None`: to the end.
    to: Option<(u32, u32)>,
}

/// What a member says of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copy {
    /// It has so many blocks.
    Blocks(u32),
    /// It serves and does not list the chunk.
    Absent,
    /// It does not serve, or was not asked.
    Unknown,
}

/// How much is there of what an extent names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Shortage {
    /// It cannot be read, whoever comes back.
    pub lost: bool,
    /// Members that have it whole.
    pub present: u8,
    /// Members of which nothing is known.
    pub unknown: u8,
    /// Members that have it, but with a bad block: of the block that is bad on the most.
    pub bad: u8,
    pub members: u8,
    pub needed: u8,
}

impl Presence {
    /// For chunks from this one on.
    pub fn new(from: (u32, u32)) -> Self {
        Self { from, newest: u32::MAX, ..Self::default() }
    }

    /// The newest group that is known: ids ascend, so of those beyond nothing can be said.
    pub fn set_newest(&mut self, pg: u32) {
        self.newest = pg;
    }

    /// Chunks of this group may follow.
    pub fn add_group(&mut self, pg: u32, members: usize, needed: usize) {
        let small = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
        self.groups.insert(pg, Group { members: small(members), needed: small(needed), unknown: 0 });
    }

    /// So many members of the group did not list their chunks to the end, or do not serve.
    pub fn set_unknown(&mut self, pg: u32, unknown: usize) {
        if let Some(group) = self.groups.get_mut(&pg) {
            group.unknown = u8::try_from(unknown).unwrap_or(u8::MAX);
        }
    }

    /// A chunk, in ascending order: what each member of the group says.
    pub fn add(&mut self, pg: u32, index: u32, copies: impl IntoIterator<Item = Copy>) {
        let members = usize::from(self.groups.get(&pg).map_or(0, |group| group.members));
        let at = u32::try_from(self.lengths.len()).expect("a part is bounded in bytes");
        let said = copies.into_iter().map(|copy| match copy {
            Copy::Blocks(blocks) => u16::try_from(blocks).unwrap_or(UNKNOWN - 1).min(UNKNOWN - 1),
            Copy::Absent => 0,
            Copy::Unknown => UNKNOWN,
        });
        self.lengths.extend(said.take(members));
        self.lengths.resize(at as usize + members, UNKNOWN);
        self.rows.push(Row { pg, index, at });
    }

    /// Blocks of the chunk that a serving member has freed: first, one past the last.
    pub fn add_freed(&mut self, pg: u32, index: u32, first: u32, end: u32) {
        self.freed.entry((pg, index)).or_default().insert(u64::from(first), u64::from(end));
    }

    /// A block of the chunk does not match its checksum on a member, and could not be healed so far.
    pub fn add_bad(&mut self, pg: u32, index: u32, member: usize, block: u32) {
        self.bad.entry((pg, index)).or_default().push((u8::try_from(member).unwrap_or(u8::MAX), block));
    }

    /// Members on which the same block of what is named is bad: the most that there are.
    fn bad_of(&self, named: &Named) -> u8 {
        let Some(bad) = self.bad.get(&(named.pg, named.index)) else { return 0 };
        let mut members: BTreeMap<u32, BTreeSet<u8>> = BTreeMap::new();
        for (member, block) in bad {
            if (named.first_block..named.held_end).contains(&u64::from(*block)) {
                members.entry(*block).or_default().insert(*member);
            }
        }
        members.values().map(|members| members.len() as u8).max().unwrap_or(0)
    }

    /// The lists end before this chunk. They go on in another part.
    pub fn end_before(&mut self, to: (u32, u32)) {
        self.to = Some(to);
    }

    pub fn memory_bytes(&self) -> usize {
        let freed: usize = self.freed.values().map(|set| set.memory_bytes() + 64).sum();
        let bad: usize = self.bad.values().map(|blocks| blocks.capacity() * size_of::<(u8, u32)>() + 64).sum();
        self.rows.capacity() * size_of::<Row>() + self.lengths.capacity() * 2 + freed + bad
    }

    /// What is short of what is named here; `None`: nothing, or it is none of this part.
    pub fn check(&self, named: &Named) -> Option<Shortage> {
        let chunk = (named.pg, named.index);
        if named.inode == 0
            || named.held_end <= named.first_block
            || chunk < self.from
            || self.to.is_some_and(|to| chunk >= to)
        {
            return None;
        }
        let Some(group) = self.groups.get(&named.pg) else {
            if named.pg > self.newest {
                return None;
            }
            // The group itself is gone.
            return Some(Shortage { lost: true, present: 0, unknown: 0, bad: 0, members: 0, needed: 1 });
        };
        let (mut present, mut unknown) = (0, 0);
        if let Ok(at) = self.rows.binary_search_by_key(&chunk, |row| (row.pg, row.index)) {
            let at = self.rows[at].at as usize;
            for length in &self.lengths[at..at + usize::from(group.members)] {
                present += u8::from(*length != UNKNOWN && u64::from(*length) >= named.held_end);
                unknown += u8::from(*length == UNKNOWN);
            }
        } else {
            unknown = group.unknown;
        }
        if self.freed.get(&chunk).is_some_and(|set| set.meets(named.first_block, named.held_end)) {
            (present, unknown) = (0, 0);
        }
        // Who has a bad block lists the chunk as long as the others.
        let bad = self.bad_of(named).min(present);
        present -= bad;
        let lost = present + unknown < group.needed;
        let short = Shortage { lost, present, unknown, bad, members: group.members, needed: group.needed };
        (present < group.members).then_some(short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(pg: u32, index: u32, first_block: u64, end_block: u64) -> Named {
        let (held_end, whole_shard) = (end_block, None);
        Named { inode: 9, file_offset: 0, pg, index, first_block, end_block, held_end, is_plain: true, whole_shard }
    }

    fn lists() -> Presence {
        let mut lists = Presence::new((2, 5));
        lists.add_group(2, 3, 1);
        lists.add(2, 5, [Copy::Blocks(10), Copy::Blocks(10), Copy::Blocks(12)]);
        lists.add(2, 7, [Copy::Blocks(10), Copy::Absent, Copy::Unknown]);
        lists.add_group(4, 5, 3);
        lists.add(4, 0, [Copy::Blocks(4), Copy::Absent, Copy::Blocks(4), Copy::Absent, Copy::Unknown]);
        lists.add(4, 1, [Copy::Absent, Copy::Absent, Copy::Absent, Copy::Blocks(4), Copy::Unknown]);
        lists.add_freed(2, 5, 3, 4);
        lists
    }

    /// A file of which every copy has rotted at the same place would count as whole.
    #[test]
    fn bad_blocks_count_as_missing() {
        let mut lists = lists();
        let told = |lists: &Presence, named: Named| lists.check(&named).map(|s| (s.lost, s.present, s.bad));
        lists.add_bad(2, 5, 0, 6);
        lists.add_bad(2, 5, 1, 7);
        assert_eq!(told(&lists, named(2, 5, 4, 10)), Some((false, 2, 1)), "different blocks: each is intact elsewhere");
        assert_eq!(told(&lists, named(2, 5, 8, 10)), None, "what others name");
        lists.add_bad(2, 5, 1, 6);
        lists.add_bad(2, 5, 2, 6);
        assert_eq!(told(&lists, named(2, 5, 4, 10)), Some((true, 0, 3)));
        lists.add_bad(4, 0, 2, 1);
        assert_eq!(told(&lists, named(4, 0, 0, 4)), Some((true, 1, 1)), "one shard more would be needed");
    }

    /// A file that lost bytes would count as whole, or a whole one as damaged.
    #[test]
    fn what_is_short_is_told() {
        let mut lists = lists();
        let told = |lists: &Presence, named: Named| lists.check(&named).map(|s| (s.lost, s.present, s.unknown));
        assert_eq!(told(&lists, named(2, 5, 4, 10)), None, "whole");
        assert_eq!(told(&lists, named(2, 5, 4, 11)), Some((false, 1, 0)), "longer than two copies");
        assert_eq!(told(&lists, named(2, 5, 2, 4)), Some((true, 0, 0)), "freed");
        let column = |held_end| Named { held_end, is_plain: false, ..named(2, 5, 4, 16) };
        assert_eq!(told(&lists, column(10)), None, "a column with less of the last row");
        assert_eq!(told(&lists, column(4)), None, "a column with nothing of it");
        assert_eq!(told(&lists, column(11)), Some((false, 1, 0)), "a column that lacks a block");
        assert_eq!(told(&lists, named(2, 7, 0, 1)), Some((false, 1, 1)));
        assert_eq!(told(&lists, named(2, 7, 0, 11)), Some((false, 0, 1)), "who is away may have it");
        assert_eq!(told(&lists, named(2, 8, 0, 1)), Some((true, 0, 0)), "nobody lists it");
        lists.set_unknown(2, 1);
        assert_eq!(told(&lists, named(2, 8, 0, 1)), Some((false, 0, 1)), "one was not asked");
        lists.set_unknown(2, 0);
        assert_eq!(told(&lists, named(4, 0, 0, 4)), Some((false, 2, 1)), "readable if the third comes back");
        assert_eq!(told(&lists, named(4, 1, 0, 4)), Some((true, 1, 1)));
        assert_eq!(told(&lists, named(3, 0, 0, 4)), Some((true, 0, 0)), "there is no such group");
        assert_eq!(told(&lists, named(2, 4, 0, 4)), None, "before this part");
        assert_eq!(told(&lists, named(5, 0, 0, 4)), Some((true, 0, 0)), "nor such a one");
        lists.set_newest(4);
        assert_eq!(told(&lists, named(5, 0, 0, 4)), None, "it may be too new to be known");
        lists.end_before((4, 1));
        assert_eq!(told(&lists, named(4, 1, 0, 4)), None, "behind this part");
        assert_eq!(told(&lists, Named { inode: 0, ..named(2, 8, 0, 1) }), None, "a free record needs nothing");
    }
}
