//! Decoders of values in the namespace's tree on hostile bytes, for the fuzz target: none may panic, and what decodes
//! must come back from its own encoding.
use crate::encoding::{
    DelegationRecord, Dentry, Extent, FreeRecord, Hold, Inode, KeptRecord, LockRange, QuotaRecord, ShareRecord,
    SnapshotRecord, SnapshotState,
};
use crate::stripe_set::{decode_part, encode_part};

/// Values of every kind. Tells how many kinds the bytes could be.
#[doc(hidden)]
pub fn fuzz_values(data: &[u8]) -> usize {
    let mut decoded = 0;
    let mut again = Vec::new();
    for offset in [0, 1, 4096, 5000, 1 << 40, u64::MAX] {
        if let Some(extent) = Extent::decode(offset, data) {
            again.clear();
            extent.encode(&mut again);
            assert_eq!(Extent::decode(offset, &again), Some(extent));
            decoded += 1;
        }
    }
    let mut columns = Vec::new();
    if decode_part(data, &mut columns).is_some() {
        again.clear();
        encode_part(&columns, &mut again);
        let mut back = Vec::new();
        assert!(decode_part(&again, &mut back).is_some() && back == columns);
        decoded += 1;
    }
    if let Some(inode) = Inode::decode(data) {
        again.clear();
        inode.encode(&mut again);
        assert!(Inode::decode(&again).is_some());
        decoded += 1;
    }
    if let Some(record) = FreeRecord::decode(7, data) {
        again.clear();
        record.encode(&mut again);
        assert!(FreeRecord::decode(7, &again).is_some());
        decoded += 1;
    }
    if let Some(lock) = LockRange::decode(9, data) {
        again.clear();
        lock.encode(&mut again);
        assert_eq!(LockRange::decode(9, &again), Some(lock));
        decoded += 1;
    }
    if let Some(quota) = QuotaRecord::decode(data) {
        again.clear();
        quota.encode(&mut again);
        assert_eq!(QuotaRecord::decode(&again), Some(quota));
        decoded += 1;
    }
    if let Some(share) = ShareRecord::decode((1, 2, 3), data) {
        again.clear();
        share.encode(&mut again);
        assert_eq!(ShareRecord::decode((1, 2, 3), &again), Some(share));
        decoded += 1;
    }
    if let Some(kept) = KeptRecord::decode(data) {
        again.clear();
        kept.encode(&mut again);
        assert_eq!(KeptRecord::decode(&again), Some(kept));
        decoded += 1;
    }
    if let Some(snapshot) = SnapshotRecord::decode(data) {
        again.clear();
        snapshot.encode(&mut again);
        assert_eq!(SnapshotRecord::decode(&again), Some(snapshot));
        decoded += 1;
    }
    if let Some(state) = SnapshotState::decode(data) {
        again.clear();
        state.encode(&mut again);
        assert_eq!(SnapshotState::decode(&again), Some(state));
        decoded += 1;
    }
    decoded += usize::from(fuzz_delegation(data));
    decoded + usize::from(Dentry::decode(data).is_some()) + usize::from(Hold::decode(data).is_some())
}

fn fuzz_delegation(data: &[u8]) -> bool {
    let Some(delegation) = DelegationRecord::decode(data) else { return false };
    let mut again = Vec::new();
    delegation.encode(&mut again);
    assert_eq!(DelegationRecord::decode(&again), Some(delegation));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::{ExtentKind, Stripe};

    /// A damaged value would end the process that serves the partition instead of one operation.
    #[test]
    fn value_corpus_and_its_mutations() {
        let stripe = Stripe::new(6, 65_536).expect("valid");
        let kinds = [ExtentKind::Plain, ExtentKind::Erasure(stripe), ExtentKind::Set(stripe)];
        let mut seeds: Vec<Vec<u8>> = kinds
            .map(|kind| {
                let mut value = Vec::new();
                let (file_offset, chunk_offset) = (0, 1 << 20);
                Extent { file_offset, length: 777_777, pg: 3, index: 9, chunk_offset, kind, shared: false, birth: 0 }
                    .encode(&mut value);
                value
            })
            .into();
        let mut part = Vec::new();
        encode_part(&[(1, 2), (300, 70_000), (u32::MAX, 0)], &mut part);
        seeds.push(part);
        // Numbers 300 to 303, and 310, of which 302 is next.
        seeds.push(vec![0x10, 7, 0xac, 2, 30, 2, 5, 0xae, 2, 2, 0xac, 2, 4, 0xb6, 2, 1]);
        let mut decoded = 0;
        for seed in &seeds {
            assert!(fuzz_values(seed) > 0, "the seed itself decodes");
            for at in 0..seed.len() {
                decoded += fuzz_values(&seed[..at]);
                for value in 0..=255 {
                    let mut bytes = seed.clone();
                    bytes[at] = value;
                    decoded += fuzz_values(&bytes);
                    bytes.insert(at, value);
                    decoded += fuzz_values(&bytes);
                }
            }
        }
        assert!(decoded > 1000, "{decoded}");
    }
}
