//! [`Walk`]: a remote tree in order, page by page: each directory before what is in it, and again when it is done.
//!
//! Bound: a page of entries for each directory between the root and where the walk is.
use crate::error::{CliError, Result};
use crate::mode;
use crate::remote::attributes_of;
use cairn_client::{RemotePath, Volume};
use cairn_types::ErrorCode;
use cairn_types::name::check_name;
use cairn_wire::meta::{Attributes, DirEntry};
use std::collections::VecDeque;

/// Deeper trees are refused; a path of 4,096 bytes cannot reach them.
const DEPTH_MAX: usize = 2100;

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

/// What comes next.
#[derive(Clone, Debug)]
pub enum Step {
    /// A thing; a directory's contents follow.
    Enter(Node),
    /// All of a directory was seen.
    Leave(Node),
}

struct Frame {
    node: Node,
    after: Vec<u8>,
    page: VecDeque<DirEntry>,
    end: bool,
}

/// A walk in progress.
pub struct Walk {
    volume: Volume,
    start: Option<Node>,
    stack: Vec<Frame>,
    /// Entered last; its contents come next unless it is skipped.
    entered: Option<Node>,
    depth_max: usize,
}

impl Walk {
    pub fn new(volume: &Volume, at: RemotePath, attributes: Attributes) -> Self {
        let start = Node { at, depth: 0, parent: 0, attributes };
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
    /// The next step; after an error the walk goes on behind the directory that could not be read.
    pub async fn next(&mut self) -> Option<Result<Step>> {
        if let Some(start) = self.start.take() {
            self.enter(&start);
            return Some(Ok(Step::Enter(start)));
        }
        if let Some(node) = self.entered.take() {
            self.stack.push(Frame { node, after: Vec::new(), page: VecDeque::new(), end: false });
        }
        loop {
            let frame = self.stack.last_mut()?;
            if let Some(entry) = frame.page.pop_front() {
                let step = self.visit(entry).await;
                return Some(step);
            }
            if frame.end {
                let frame = self.stack.pop()?;
                return Some(Ok(Step::Leave(frame.node)));
            }
            if let Err(error) = self.fetch().await {
                if let Some(frame) = self.stack.last_mut() {
                    frame.end = true;
                }
                // A directory that was removed meanwhile is no failure.
                if error.code() == Some(ErrorCode::Stale) || error.is_not_found() {
                    continue;
                }
                return Some(Err(error));
            }
        }
    }

    async fn fetch(&mut self) -> Result<()> {
        let Some(frame) = self.stack.last_mut() else { return Ok(()) };
        let page = self.volume.readdir(frame.node.attributes.inode, &frame.after, true).await;
        let page = page.map_err(|error| error.named(&frame.node.at.to_string()))?;
        frame.end = page.end || page.entries.is_empty();
        if let Some(last) = page.entries.last() {
            frame.after.clone_from(&last.cookie);
        }
        frame.page = page.entries.into();
        Ok(())
    }

    async fn visit(&mut self, entry: DirEntry) -> Result<Step> {
        let Some(frame) = self.stack.last() else {
            return Err(CliError::usage("an entry without its directory"));
        };
        if let Err(error) = check_name(&entry.name) {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let text = format!("{}: the server gave the name {name:?}: {error}; it was left out", frame.node.at);
            return Err(CliError::refused(crate::exit::Exit::Damaged, text));
        }
        let (parent, depth) = (frame.node.attributes.inode, frame.node.depth + 1);
        let at = frame.node.at.join(&entry.name);
        let attributes = attributes_of(&self.volume, &entry).await?;
        let node = Node { at, depth, parent, attributes };
        self.enter(&node);
        Ok(Step::Enter(node))
    }

    fn enter(&mut self, node: &Node) {
        self.entered = (node.is_directory() && node.depth < self.depth_max).then(|| node.clone());
    }
}
