//! A namespace's pages in a checkpoint: each one as its length (u32 little-endian) and its bytes.
//!
//! The file around them carries checksums; a page that is sound by these and still makes no sense is reported as
//! damage, so that the checkpoint before it is used.

use cairn_meta_core::{Namespace, NamespaceBuilder, NamespaceSnapshot, RestoreError};
use cairn_store::{CheckpointSink, CheckpointSource, StoreError};
use cairn_types::PartitionId;

/// Aimed-at size of a page.
const PAGE_BYTES: usize = 256 << 10;
/// No page is longer: a record of the tree is at most 1 MiB, a session's at most 256 kept answers.
const PAGE_BYTES_MAX: u64 = 64 << 20;

/// Writes all pages. Runs on a background thread.
pub(crate) fn write(snapshot: &NamespaceSnapshot, sink: &mut dyn CheckpointSink) -> Result<(), StoreError> {
    let mut pages = snapshot.pages(PAGE_BYTES);
    let mut page = Vec::with_capacity(PAGE_BYTES + 4096);
    while pages.next_into(&mut page) {
        let length = u32::try_from(page.len()).expect("a page is far below 4 GiB");
        sink.write(&length.to_le_bytes())?;
        sink.write(&page)?;
    }
    Ok(())
}

/// Reads all pages and puts the namespace together.
pub(crate) fn read(source: &mut dyn CheckpointSource, partition: PartitionId) -> Result<Namespace, StoreError> {
    let total = source.len();
    let corrupt =
        |offset: u64, what: String| StoreError::Corrupt { file: format!("checkpoint of {partition}"), offset, what };
    let mut builder = NamespaceBuilder::new();
    let (mut offset, mut page) = (0, Vec::new());
    while offset < total {
        let mut length = [0; 4];
        source.read_exact(&mut length)?;
        let length = u64::from(u32::from_le_bytes(length));
        if length > PAGE_BYTES_MAX || length > total.saturating_sub(offset + 4) {
            return Err(corrupt(offset, format!("a page of {length} bytes does not fit")));
        }
        page.resize(length as usize, 0);
        source.read_exact(&mut page)?;
        builder.push_page(&page).map_err(|error| refused(partition, offset, &error))?;
        offset += 4 + length;
    }
    let namespace = builder.finish().map_err(|error| refused(partition, offset, &error))?;
    if namespace.partition() != partition {
        return Err(corrupt(0, format!("it is the checkpoint of {}", namespace.partition())));
    }
    Ok(namespace)
}

fn refused(partition: PartitionId, offset: u64, error: &RestoreError) -> StoreError {
    match error {
        // Not damage: an older checkpoint would be of the same kind.
        RestoreError::NotANamespace(_) => {
            StoreError::State { group: partition.get(), index: 0, what: error.to_string() }
        }
        other => StoreError::Corrupt { file: format!("checkpoint of {partition}"), offset, what: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_meta_core::{AppliedAt, NamespaceConfig};
    use cairn_types::{Layout, VolumeId, WallTime};
    use cairn_wire::Opcode;
    use cairn_wire::common::Credentials;
    use cairn_wire::meta::{CreateRequest, MetaHeader};
    use prost::Message;

    const PARTITION: PartitionId = PartitionId(4);

    #[derive(Default)]
    struct Memory {
        bytes: Vec<u8>,
        at: usize,
    }

    impl CheckpointSink for Memory {
        fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
            self.bytes.extend_from_slice(bytes);
            Ok(())
        }
    }

    impl CheckpointSource for Memory {
        fn len(&self) -> u64 {
            self.bytes.len() as u64
        }
        fn read(&mut self, buf: &mut [u8]) -> Result<usize, StoreError> {
            let count = buf.len().min(self.bytes.len() - self.at);
            buf[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
            self.at += count;
            Ok(count)
        }
        fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), StoreError> {
            let wanted = buf.len();
            match self.read(buf)? {
                count if count == wanted => Ok(()),
                _ => Err(StoreError::Corrupt { file: "memory".into(), offset: self.at as u64, what: "ends".into() }),
            }
        }
    }

    fn filled() -> Namespace {
        let mut namespace = Namespace::new(&NamespaceConfig::new(VolumeId(1), PARTITION, Layout::replicated(1)));
        for number in 1..=3000u64 {
            let who = Some(Credentials::default());
            let header = MetaHeader { volume: 1, partition: 4, session: 9, slot: 0, sequence: number, who };
            let request = CreateRequest {
                header: Some(header),
                parent: 1,
                name: format!("a file number {number}").into_bytes(),
                mode: 0o100_644,
                ..CreateRequest::default()
            };
            let at = AppliedAt { index: number, term: 1, time: WallTime(number) };
            namespace.apply(at, Opcode::Create, &request.encode_to_vec(), &mut Vec::new()).expect("created");
        }
        namespace
    }

    /// A restart would lose files if a checkpoint did not give back what was put in.
    #[test]
    fn what_is_written_is_read_back() {
        let namespace = filled();
        let mut memory = Memory::default();
        write(&namespace.snapshot(), &mut memory).expect("written");
        let back = read(&mut memory, PARTITION).expect("read");
        assert_eq!(back.counters(), namespace.counters());
        assert_eq!(back.applied_index(), 3000);
        let mut again = Memory::default();
        write(&back.snapshot(), &mut again).expect("written");
        assert!(memory.bytes == again.bytes, "the same state has the same bytes");
    }

    /// Damage would be loaded, or crash the server, instead of leading to the older checkpoint.
    #[test]
    fn damage_and_foreign_checkpoints_are_refused() {
        let mut memory = Memory::default();
        write(&filled().snapshot(), &mut memory).expect("written");
        let foreign = read(&mut Memory { bytes: memory.bytes.clone(), at: 0 }, PartitionId(5)).err();
        assert!(matches!(foreign, Some(StoreError::Corrupt { .. })));
        for cut in [1, 3, 100, memory.bytes.len() / 2, memory.bytes.len() - 1] {
            let bytes = memory.bytes[..cut].to_vec();
            assert!(read(&mut Memory { bytes, at: 0 }, PARTITION).is_err(), "cut at {cut}");
        }
        let mut long = memory.bytes.clone();
        long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(read(&mut Memory { bytes: long, at: 0 }, PARTITION).is_err());
    }
}
