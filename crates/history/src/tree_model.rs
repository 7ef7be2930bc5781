//! A small tree of names, one operation at a time: what the namespace has to be equal to.
//!
//! Files and directories are known by the tag that whoever made them gave them, in their permission bits, so that one
//! whose maker never heard that it was made is known when it is seen. Operations name directories by tag, as the
//! servers do by inode: what a path means may change between two steps of its resolution, a directory stays what it is.
#[cfg(test)]
mod tests;

use crate::linear::Model;
use cairn_types::ErrorCode;
use cairn_types::ErrorCode::{
    Exists, InvalidArgument, IsDirectory, NotDirectory, NotEmpty, NotFound, NotPermitted, Stale,
};
use std::collections::BTreeMap;

/// What a file or directory was made with.
pub type Tag = u16;
/// The directory in which all of it happens.
pub const TOP: Tag = 0;
/// Tags are below this: permission bits.
pub const TAGS: Tag = 0o1000;

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub dir: Tag,
    pub name: u8,
}

/// As the flags of renameat2(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Replace = 0,
    NoReplace = 1,
    Exchange = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A file that does not exist yet.
    Create(Place, Tag),
    Mkdir(Place, Tag),
    Unlink(Place),
    Rmdir(Place),
    Rename(Place, Place, Mode),
    /// A further name for a file.
    Link(Tag, Place),
    Lookup(Place),
    Stat(Tag),
    List(Tag),
}

impl Op {
    pub fn is_read(&self) -> bool {
        matches!(self, Op::Lookup(_) | Op::Stat(_) | Op::List(_))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// What is there, as far as it was told.
    Found {
        dir: bool,
        tag: Option<Tag>,
        links: Option<u32>,
    },
    Names(Vec<(u8, Tag)>),
    Refused(ErrorCode),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Node {
    /// A directory in another one; in none once it was removed.
    Dir(Option<Tag>),
    /// A file with so many names.
    File(u32),
}

/// All names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tree {
    names: BTreeMap<Place, Tag>,
    nodes: BTreeMap<Tag, Node>,
}

/// The namespace as a model.
pub struct Names;

impl Model for Names {
    type State = Tree;
    type Input = Op;
    type Output = Answer;
    fn step(&self, state: &Tree, op: &Op, answer: Option<&Answer>) -> Option<Tree> {
        let refusals = state.refusals(op)?;
        let fits = match answer {
            Some(Answer::Refused(code)) => return refusals.contains(code).then(|| state.clone()),
            // Attributes of a file without a name can be had for a while.
            Some(found @ Answer::Found { .. }) if matches!(op, Op::Stat(_)) => {
                return state.found(op, found).then(|| state.clone());
            }
            _ if !refusals.is_empty() => false,
            None => true,
            Some(Answer::Done) => !op.is_read(),
            Some(found @ Answer::Found { .. }) => state.found(op, found),
            Some(Answer::Names(names)) => matches!(op, Op::List(dir) if state.list(*dir) == *names),
        };
        fits.then(|| state.after(op))
    }
}

impl Default for Tree {
    fn default() -> Tree {
        Tree::new()
    }
}

impl Tree {
    /// With nothing in it.
    pub fn new() -> Tree {
        Tree { names: BTreeMap::new(), nodes: BTreeMap::from([(TOP, Node::Dir(Some(TOP)))]) }
    }
    fn at(&self, place: Place) -> Option<Tag> {
        self.names.get(&place).copied()
    }
    fn is_dir(&self, tag: Tag) -> bool {
        matches!(self.nodes.get(&tag), Some(Node::Dir(_)))
    }
    fn is_empty(&self, dir: Tag) -> bool {
        !self.names.keys().any(|place| place.dir == dir)
    }
    fn list(&self, dir: Tag) -> Vec<(u8, Tag)> {
        let inside = self.names.iter().filter(|(place, _)| place.dir == dir);
        inside.map(|(place, tag)| (place.name, *tag)).collect()
    }
    /// Names of a file; of a directory its own, its `.`, and a `..` of each in it.
    fn links(&self, tag: Tag) -> u32 {
        match self.nodes.get(&tag) {
            Some(Node::File(links)) => *links,
            Some(Node::Dir(Some(_))) => {
                let inside = self.names.iter().filter(|(place, inner)| place.dir == tag && self.is_dir(**inner));
                2 + inside.count() as u32
            }
            Some(Node::Dir(None)) | None => 0,
        }
    }
    /// Whether a directory is another one, or above it.
    fn is_above(&self, dir: Tag, other: Tag) -> bool {
        let mut at = other;
        loop {
            match self.nodes.get(&at) {
                _ if at == dir => return true,
                Some(Node::Dir(Some(above))) if at != TOP => at = *above,
                _ => return false,
            }
        }
    }

    /// Everything that is wrong with an operation: any of it may be the answer, and if nothing is, it is done. `None`:
    /// it names what does not exist yet.
    fn refusals(&self, op: &Op) -> Option<Vec<ErrorCode>> {
        let mut wrong = Vec::new();
        let entry = |place: Place, wrong: &mut Vec<ErrorCode>| match self.nodes.get(&place.dir)? {
            Node::Dir(Some(_)) => Some(self.at(place)),
            _ => {
                wrong.extend([NotFound, Stale]);
                Some(None)
            }
        };
        let note = |wrong: &mut Vec<ErrorCode>, holds: bool, code: ErrorCode| wrong.extend(holds.then_some(code));
        match *op {
            Op::Create(place, _) | Op::Mkdir(place, _) => {
                let there = entry(place, &mut wrong)?;
                note(&mut wrong, there.is_some(), Exists);
            }
            Op::Unlink(place) | Op::Rmdir(place) | Op::Lookup(place) => match entry(place, &mut wrong)? {
                None => note(&mut wrong, true, NotFound),
                Some(there) => {
                    let (dir, rmdir) = (self.is_dir(there), matches!(op, Op::Rmdir(_)));
                    note(&mut wrong, dir && matches!(op, Op::Unlink(_)), IsDirectory);
                    note(&mut wrong, !dir && rmdir, NotDirectory);
                    note(&mut wrong, dir && rmdir && !self.is_empty(there), NotEmpty);
                }
            },
            Op::Rename(from, to, mode) => {
                let (moved, there) = (entry(from, &mut wrong)?, entry(to, &mut wrong)?);
                self.refusals_of_rename((from, moved), (to, there), mode, &mut wrong);
            }
            Op::Link(tag, place) => {
                let there = entry(place, &mut wrong)?;
                note(&mut wrong, there.is_some(), Exists);
                match self.nodes.get(&tag)? {
                    Node::Dir(_) => wrong.extend([NotPermitted, NotFound, Stale]),
                    Node::File(0) => wrong.extend([NotFound, Stale]),
                    Node::File(_) => {}
                }
            }
            Op::Stat(tag) | Op::List(tag) => {
                if matches!(self.nodes.get(&tag)?, Node::Dir(None) | Node::File(0)) {
                    wrong.extend([NotFound, Stale]);
                }
            }
        }
        Some(wrong)
    }
    fn refusals_of_rename(
        &self,
        (from, moved): (Place, Option<Tag>),
        (to, there): (Place, Option<Tag>),
        mode: Mode,
        wrong: &mut Vec<ErrorCode>,
    ) {
        let Some(moved) = moved else { return wrong.push(NotFound) };
        let exchange = mode == Mode::Exchange;
        if there.is_some() && mode == Mode::NoReplace {
            wrong.push(Exists);
        }
        if there.is_none() && exchange {
            wrong.push(NotFound);
        }
        if from.dir != to.dir && self.is_dir(moved) && self.is_above(moved, to.dir) {
            wrong.push(InvalidArgument);
        }
        let Some(there) = there.filter(|there| *there != moved) else { return };
        if from.dir != to.dir && self.is_dir(there) && self.is_above(there, from.dir) {
            wrong.push(if exchange { InvalidArgument } else { NotEmpty });
        }
        if !exchange {
            match (self.is_dir(moved), self.is_dir(there)) {
                (true, false) => wrong.push(NotDirectory),
                (false, true) => wrong.push(IsDirectory),
                _ => {}
            }
            if self.is_dir(there) && !self.is_empty(there) {
                wrong.push(NotEmpty);
            }
        }
    }

    /// Whether that is what is there.
    fn found(&self, op: &Op, answer: &Answer) -> bool {
        let there = match op {
            Op::Lookup(place) => self.at(*place),
            Op::Stat(tag) => Some(*tag),
            _ => None,
        };
        let (Some(there), Answer::Found { dir, tag, links }) = (there, answer) else { return false };
        *dir == self.is_dir(there)
            && tag.is_none_or(|tag| tag == there)
            && links.is_none_or(|links| links == self.links(there))
    }

    /// The tree behind an operation that nothing is wrong with.
    fn after(&self, op: &Op) -> Tree {
        let mut tree = self.clone();
        match *op {
            Op::Create(place, tag) => {
                tree.nodes.insert(tag, Node::File(0));
                tree.name(place, tag);
            }
            Op::Mkdir(place, tag) => {
                tree.nodes.insert(tag, Node::Dir(None));
                tree.name(place, tag);
            }
            Op::Unlink(place) | Op::Rmdir(place) => tree.forget(place),
            Op::Link(tag, place) => tree.name(place, tag),
            Op::Rename(from, to, mode) => {
                let (moved, there) = (self.at(from), self.at(to));
                if let Some(moved) = moved.filter(|_| moved != there) {
                    tree.forget(from);
                    tree.forget(to);
                    tree.name(to, moved);
                    if let Some(there) = there.filter(|_| mode == Mode::Exchange) {
                        tree.name(from, there);
                    }
                }
            }
            Op::Lookup(_) | Op::Stat(_) | Op::List(_) => {}
        }
        tree
    }
    fn name(&mut self, place: Place, tag: Tag) {
        self.names.insert(place, tag);
        match self.nodes.get_mut(&tag) {
            Some(Node::File(links)) => *links += 1,
            Some(Node::Dir(parent)) => *parent = Some(place.dir),
            None => {}
        }
    }
    fn forget(&mut self, place: Place) {
        match self.names.remove(&place).and_then(|tag| self.nodes.get_mut(&tag)) {
            Some(Node::File(links)) => *links -= 1,
            Some(Node::Dir(parent)) => *parent = None,
            None => {}
        }
    }
}
