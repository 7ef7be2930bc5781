//! [`TreeWalk`]: what is below a path, in order, page by page: each directory before what is in it, and again when it
//! is done.
//!
//! Bound: a page of entries for each directory between the start and where the walk is. What is renamed meanwhile may
//! be seen twice or not at all; a directory that is removed meanwhile is no failure.
use crate::attributes::Attributes;
use crate::error::{ClientError, Result};
use crate::listing::DirEntry;
use crate::meta::volume::{Volume, shown};
use cairn_types::ErrorCode;
use cairn_types::name::check_name;
use std::collections::VecDeque;

/// Deeper trees are not entered; a path of 4,096 bytes cannot reach them.
const DEPTH_MAX: usize = 2100;

/// A thing in the tree.
#[derive(Clone, Debug)]
pub struct TreeNode {
    pub path: Vec<u8>,
    /// 0 for what the walk was started with.
    pub depth: usize,
    /// Inode of its directory; 0 where it is not known (the start).
    pub parent: u64,
    pub attributes: Attributes,
}

impl TreeNode {
    pub fn is_directory(&self) -> bool {
        self.attributes.is_directory()
    }
}

/// What comes next.
#[derive(Clone, Debug)]
pub enum TreeStep {
    /// A thing; a directory's contents follow.
    Enter(TreeNode),
    /// All of a directory was seen.
    Leave(TreeNode),
}

struct Frame {
    node: TreeNode,
    after: Vec<u8>,
    page: VecDeque<DirEntry>,
    end: bool,
}

/// A walk in progress.
pub struct TreeWalk {
    volume: Volume,
    start: Option<TreeNode>,
    stack: Vec<Frame>,
    /// Entered last; its contents come next unless it is skipped.
    entered: Option<TreeNode>,
    depth_max: usize,
}

impl TreeWalk {
    pub fn new(volume: &Volume, path: Vec<u8>, attributes: Attributes) -> Self {
        let start = TreeNode { path, depth: 0, parent: 0, attributes };
        Self { volume: volume.clone(), start: Some(start), stack: Vec::new(), entered: None, depth_max: DEPTH_MAX }
    }
    /// Directories at this depth are shown but not entered.
    pub fn depth_max(mut self, depth: usize) -> Self {
        self.depth_max = depth.min(DEPTH_MAX);
        self
    }
    /// The directory that was entered last is not walked; no `Leave` comes for it.
    pub fn skip(&mut self) {
        self.entered = None;
    }
    /// The next step; after an error the walk goes on behind what it was about.
    pub async fn next(&mut self) -> Option<Result<TreeStep>> {
        if let Some(start) = self.start.take() {
            return Some(Ok(self.enter(start)));
        }
        if let Some(node) = self.entered.take() {
            self.stack.push(Frame { node, after: Vec::new(), page: VecDeque::new(), end: false });
        }
        loop {
            let frame = self.stack.last_mut()?;
            if let Some(entry) = frame.page.pop_front() {
                return Some(self.visit(entry).await);
            }
            if frame.end {
                let frame = self.stack.pop()?;
                return Some(Ok(TreeStep::Leave(frame.node)));
            }
            if let Err(error) = self.fetch().await {
                if let Some(frame) = self.stack.last_mut() {
                    frame.end = true;
                }
                if error.code() != Some(ErrorCode::Stale) && !error.is_not_found() {
                    return Some(Err(error));
                }
            }
        }
    }

    async fn fetch(&mut self) -> Result<()> {
        let Some(frame) = self.stack.last_mut() else { return Ok(()) };
        let page = self.volume.readdir(frame.node.attributes.inode, &frame.after, true).await;
        let page = page.map_err(|error| error.named(&shown(&frame.node.path)))?;
        frame.end = page.end || page.entries.is_empty();
        if let Some(last) = page.entries.last() {
            frame.after.clone_from(&last.cookie);
        }
        frame.page = page.entries.into();
        Ok(())
    }

    async fn visit(&mut self, entry: DirEntry) -> Result<TreeStep> {
        let Some(above) = self.stack.last().map(|frame| frame.node.clone()) else {
            return Err(ClientError::protocol("a walk", "an entry without its directory"));
        };
        if let Err(error) = check_name(&entry.name) {
            let name = String::from_utf8_lossy(&entry.name);
            let text = format!("the server gave the name {name:?}: {error}; it was left out");
            return Err(ClientError::protocol(&shown(&above.path), text));
        }
        let mut path = above.path;
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(&entry.name);
        let attributes = match entry.attributes {
            Some(attributes) => attributes,
            None => self.volume.getattr(entry.inode).await.map_err(|error| error.named(&shown(&path)))?,
        };
        let parent = above.attributes.inode;
        Ok(self.enter(TreeNode { path, depth: above.depth + 1, parent, attributes }))
    }

    fn enter(&mut self, node: TreeNode) -> TreeStep {
        self.entered = (node.is_directory() && node.depth < self.depth_max).then(|| node.clone());
        TreeStep::Enter(node)
    }
}
