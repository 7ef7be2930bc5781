//! A leaf: one packed page behind one reference count, in one allocation.

use std::sync::Arc;

use crate::page::{Page, PageBuf};

/// The two reference counts in front of the page's bytes.
const COUNTS: usize = 16;

/// A shared leaf page.
#[derive(Clone)]
pub(crate) struct Leaf(Arc<[u8]>);

impl Leaf {
    pub(crate) fn new(bytes: &[u8]) -> Leaf {
        Leaf(Arc::from(bytes))
    }

    #[inline]
    pub(crate) fn page(&self) -> Page<'_> {
        Page::new(&self.0)
    }

    /// Bytes asked from the allocator.
    #[inline]
    pub(crate) fn memory(&self) -> usize {
        // The counts and the bytes are one allocation, rounded up to the alignment of the counts.
        (COUNTS + self.0.len()).next_multiple_of(align_of::<usize>())
    }
}

impl PageBuf for Leaf {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn is_unique(&self) -> bool {
        // There are no weak references, and `&mut` to the only strong one keeps others from making more.
        Arc::strong_count(&self.0) == 1
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        Arc::get_mut(&mut self.0).expect("the caller checked that the page is not shared")
    }

    fn replace(&mut self, bytes: &[u8]) {
        self.0 = Arc::from(bytes);
    }
}
