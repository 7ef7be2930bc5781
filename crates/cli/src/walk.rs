//! [`Walk`]: a remote tree in order, with the paths that a person reads. The walking is the client library's.
use crate::error::Result;
use crate::mode;
use cairn_client::attributes::Attributes;
use cairn_client::{RemotePath, TreeNode, TreeStep, TreeWalk, Volume};
use std::collections::BTreeSet;

/// Files with several names that are remembered, so that they count once.
const LINKED_MAX: usize = 1_000_000;

/// A thing in the tree.
#[derive(Clone, Debug)]
pub struct Node {
    pub at: RemotePath,
    /// 0 for what the walk was started with.
    pub depth: usize,
    /// Inode of its directory; 0 where it is not known (the start).
    pub parent: u64,
    pub attributes: Attributes,
}

impl Node {
    pub fn is_directory(&self) -> bool {
        mode::is_directory(self.attributes.mode)
    }
}

/// Files with several names that a walk came by.
#[derive(Default)]
pub struct Linked {
    seen: BTreeSet<u64>,
}

impl Linked {
    /// The file was met under another of its names. Beyond a million of them this is no longer known.
    pub fn was_seen(&mut self, attributes: &Attributes) -> bool {
        let is_known = self.seen.len() < LINKED_MAX || self.seen.contains(&attributes.inode);
        attributes.nlink > 1 && is_known && !self.seen.insert(attributes.inode)
    }
}

/// What comes next.
#[derive(Clone, Debug)]
pub enum Step {
    /// A thing; a directory's contents follow.
    Enter(Node),
    /// All of a directory was seen.
    Leave(Node),
}

/// A walk in progress.
pub struct Walk {
    walk: TreeWalk,
    /// Where it began: cluster and volume of everything below.
    start: RemotePath,
}

impl Walk {
    pub fn new(volume: &Volume, at: RemotePath, attributes: Attributes) -> Self {
        Self { walk: TreeWalk::new(volume, at.path.clone(), attributes), start: at }
    }
    /// Directories at this depth are shown but not entered.
    pub fn depth_max(mut self, depth: usize) -> Self {
        self.walk = self.walk.depth_max(depth);
        self
    }
    /// The directory that was entered last is not walked; no `Leave` comes for it.
    pub fn skip(&mut self) {
        self.walk.skip();
    }
    /// The next step; after an error the walk goes on behind the directory that could not be read.
    pub async fn next(&mut self) -> Option<Result<Step>> {
        Some(match self.walk.next().await? {
            Ok(TreeStep::Enter(node)) => Ok(Step::Enter(self.node(node))),
            Ok(TreeStep::Leave(node)) => Ok(Step::Leave(self.node(node))),
            Err(error) => Err(error.into()),
        })
    }

    fn node(&self, node: TreeNode) -> Node {
        let TreeNode { path, depth, parent, attributes } = node;
        Node { at: RemotePath { path, ..self.start.clone() }, depth, parent, attributes }
    }
}
