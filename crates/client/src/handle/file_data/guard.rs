//! What a file's memory knows of the mark by which its writers can be shut out. How that is done is in `shut_out`.
use crate::meta::volume::Volume;

/// What a file's memory knows of its mark.
#[derive(Default)]
pub(super) struct Guard {
    /// Of the writers that are not shut out. 0: nobody can be.
    pub generation: u64,
    /// Name of the attribute, and on whose behalf it is looked at.
    pub mark: Option<(Vec<u8>, Volume)>,
    pub value: Option<Vec<u8>>,
    /// So many changes of others were known when it was looked at last.
    pub seen: u64,
}

impl Guard {
    pub fn saw(&mut self, foreign: u64) {
        self.seen = self.seen.max(foreign);
    }
}
