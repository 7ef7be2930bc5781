//! [`TestFile`]: a file with a model of its bytes: those that were published, and those that its handle has.

use cairn_client::{FileHandle, FileReader};
use cairn_sim::SimRng;
use cairn_types::Layout;

use std::sync::Arc;

use crate::members::Snapshot;

/// A file and what is known of it.
pub struct TestFile {
    pub path: Vec<u8>,
    pub inode: u64,
    pub layout: Layout,
    /// None while it is replaced or the client restarts.
    pub handle: Option<FileHandle>,
    /// What every reader gets.
    pub published: Vec<u8>,
    /// What the handle's own reads get.
    pub current: Vec<u8>,
    /// Extent maps of before, with the bytes that they named.
    pub snapshots: Vec<Snapshot>,
    /// Readers that were opened before, with the bytes of their version, and whether the file has changed since.
    pub readers: Vec<OldReader>,
    /// Small writes go to the blocks that are there.
    pub in_place: bool,
}

/// A reader of a version of a file.
pub struct OldReader {
    pub reader: FileReader,
    pub want: Vec<u8>,
    pub got: usize,
    pub changed: bool,
    /// What the file was to be since.
    pub later: Vec<Arc<Vec<u8>>>,
}

impl TestFile {
    /// A file that does not exist yet.
    pub fn new(path: String, layout: Layout) -> Self {
        Self {
            path: path.into_bytes(),
            inode: 0,
            layout,
            handle: None,
            published: Vec::new(),
            current: Vec::new(),
            snapshots: Vec::new(),
            readers: Vec::new(),
            in_place: is_in_place(layout),
        }
    }

    /// It was written anew by a layout. What was in place before stays so for who looks at old maps.
    pub fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
        self.in_place |= is_in_place(layout);
        self.readers.iter_mut().for_each(|old| old.changed = true);
    }

    /// What the handle has now may come to the blocks that older maps name.
    fn note(&mut self) {
        if self.in_place && !self.snapshots.is_empty() {
            let now = Arc::new(self.current.clone());
            self.snapshots.iter_mut().for_each(|old| old.later.push(now.clone()));
            self.readers.iter_mut().for_each(|old| old.later.push(now.clone()));
        }
    }
    /// Cuts or lengthens the model of the handle.
    pub fn resize(&mut self, size: usize) {
        self.current.resize(size, 0);
        self.note();
    }

    /// Puts bytes into the model of the handle.
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        self.current.resize(self.current.len().max(end), 0);
        self.current[offset..end].copy_from_slice(data);
        self.note();
    }

    /// What the handle had is what everybody gets.
    pub fn publish(&mut self) {
        if self.published != self.current {
            self.published.clone_from(&self.current);
            self.readers.iter_mut().for_each(|old| old.changed = true);
        }
    }

    /// The outcome of a publish is not known: every byte is one of before or of after it, whatever the order.
    pub fn allows(&self, bytes: &[u8]) -> Result<(), String> {
        let (least, most) =
            (self.published.len().min(self.current.len()), self.published.len().max(self.current.len()));
        if !(least..=most).contains(&bytes.len()) {
            return Err(format!("{} bytes, which is neither between {least} and {most}", bytes.len()));
        }
        let one_of = |(at, byte): (usize, &u8)| {
            let (before, after) = (self.published.get(at), self.current.get(at));
            // Behind the old end there can be a hole where only a later part was published.
            before == Some(byte) || after == Some(byte) || before.is_none() && *byte == 0
        };
        match bytes.iter().enumerate().position(|byte| !one_of(byte)) {
            None => Ok(()),
            Some(at) => Err(format!("byte {at} is neither that of before nor that of after")),
        }
    }
}

fn is_in_place(layout: Layout) -> bool {
    layout.scheme().is_replicated() && layout.stripe().is_none()
}

/// Where and how two runs of bytes differ.
pub fn difference(have: &[u8], want: &[u8]) -> Option<String> {
    if have == want {
        return None;
    }
    let at = have.iter().zip(want).position(|(a, b)| a != b).unwrap_or(have.len().min(want.len()));
    let run = have[at..].iter().zip(&want[at..]).take_while(|(a, b)| a != b).count();
    let shown = |bytes: &[u8]| format!("{:02x?}", &bytes[at.min(bytes.len())..(at + 8).min(bytes.len())]);
    Some(format!(
        "{} bytes for {}, the first other one at {at} ({run} in a row): {} for {}",
        have.len(),
        want.len(),
        shown(have),
        shown(want)
    ))
}

/// Bytes that are never the same twice: each 8 have their own number.
pub fn fresh_bytes(rng: &SimRng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    cairn_env::Rng::fill(rng, &mut bytes);
    // Zeros are what holes have.
    bytes.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = 0x5a);
    bytes
}
