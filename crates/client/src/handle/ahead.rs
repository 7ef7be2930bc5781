//! Parts of a file that are read before they are asked for.
//!
//! Invariants: blocks do not overlap; each has its bytes reserved in the budget as long as it is here. A block that is
//! dropped while it is being read is not read further.
use super::budget::Budget;
use crate::error::Result;
use cairn_env::buf::SharedBuf;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Blocks that lie so far behind a reader that has read them are dropped.
const KEEP_BEHIND: u64 = 1 << 20;

pub(crate) struct Blocks {
    budget: Arc<Budget>,
    blocks: BTreeMap<u64, Arc<Block>>,
}

/// Bytes `from..to` of the file, or on their way.
pub(crate) struct Block {
    pub from: u64,
    pub to: u64,
    budget: Arc<Budget>,
    got: Mutex<Option<Result<Vec<SharedBuf>>>>,
    done: watch::Sender<bool>,
    task: Mutex<Option<AbortHandle>>,
    used: AtomicBool,
}

impl Blocks {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, blocks: BTreeMap::new() }
    }
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
    }
    pub(crate) fn bytes(&self) -> usize {
        self.blocks.values().map(|block| (block.to - block.from) as usize).sum()
    }
    /// The block with that byte.
    pub(crate) fn at(&self, offset: u64) -> Option<Arc<Block>> {
        self.blocks.range(..=offset).next_back().map(|(_, block)| block).filter(|block| block.to > offset).cloned()
    }
    /// Where the next block behind an offset begins.
    pub(crate) fn next(&self, offset: u64) -> Option<u64> {
        self.blocks.range(offset..).next().map(|(at, _)| *at)
    }
    /// What lies in `from..to` is something else now.
    pub(crate) fn cut(&mut self, from: u64, to: u64) {
        let before = self.blocks.range(..from).next_back().filter(|(_, block)| block.to > from).map(|(at, _)| *at);
        let inside = self.blocks.range(from..to.max(from)).map(|(at, _)| *at);
        let touched: Vec<u64> = before.into_iter().chain(inside).collect();
        touched.iter().for_each(|at| drop(self.blocks.remove(at)));
    }
    /// A reader is at `offset`: what it has behind it is not needed any more.
    pub(crate) fn passed(&mut self, offset: u64) {
        let behind = |block: &Arc<Block>| block.to + KEEP_BEHIND <= offset && block.used.load(Ordering::Relaxed);
        if self.blocks.values().next().is_some_and(behind) {
            self.blocks.retain(|_, block| !behind(block));
        }
    }
    /// Begins to read a block; false if there is no memory for it.
    pub(crate) fn begin(
        &mut self,
        (from, to): (u64, u64),
        read: impl Future<Output = Result<Vec<SharedBuf>>> + Send + 'static,
    ) -> bool {
        if !self.budget.try_reserve((to - from) as usize) {
            return false;
        }
        let block = Arc::new(Block {
            from,
            to,
            budget: self.budget.clone(),
            got: Mutex::new(None),
            done: watch::Sender::new(false),
            task: Mutex::new(None),
            used: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&block);
        let task = tokio::spawn(async move {
            let got = read.await;
            if let Some(block) = weak.upgrade() {
                *block.got.lock() = Some(got);
                block.done.send_replace(true);
            }
        });
        *block.task.lock() = Some(task.abort_handle());
        self.blocks.insert(from, block);
        true
    }
}

impl Block {
    /// Its bytes from `from` to `to`, when they are there.
    pub(crate) async fn read(&self, from: u64, to: u64, data: &mut Vec<SharedBuf>) -> Result<()> {
        let mut done = self.done.subscribe();
        // The sender lives in the block itself.
        let _never_dropped = done.wait_for(|done| *done).await;
        self.used.store(true, Ordering::Relaxed);
        let got = self.got.lock();
        let parts = match &*got {
            Some(Ok(parts)) => parts,
            Some(Err(error)) => return Err(error.clone()),
            None => return Ok(()),
        };
        let mut at = self.from;
        for part in parts {
            let end = at + part.len() as u64;
            let (start, stop) = (at.max(from), end.min(to));
            if start < stop {
                data.push(part.slice((start - at) as usize..(stop - at) as usize));
            }
            at = end;
        }
        Ok(())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
        self.budget.release((self.to - self.from) as usize);
    }
}
