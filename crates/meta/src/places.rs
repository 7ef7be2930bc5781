//! Places of chunks that a request names: placement groups, which have to be the partition's volume's own.
//!
//! A partition has chunks freed, read and copied by servers, which may do so in every volume: so it takes in no place
//! of another volume, and says so before anything is logged. Invariant: every occurrence of a group in a message
//! counts, whichever of them a decoder takes. It reads protobuf in place, as `header.rs` does. Not here: who wrote what
//! is there (meta-core), rights of keys (`rights.rs`).

use cairn_node_agent::MapView;
use cairn_types::{ErrorCode, PgId, VolumeId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;

use crate::header::{next_field, varint};

/// Field numbers of a request's extents and stripe sets.
const OF_PUBLISH: (u64, u64) = (3, 8);
const OF_CREATE: (u64, u64) = (11, 16);
const OF_DISCARD: (u64, u64) = (2, 3);
/// The publish in a PublishAttributes, and the group of an OpenAppend.
const PUBLISH: u64 = 2;
/// The items of a Batch; operation and request of each.
const ITEMS: u64 = 4;
const OPCODE_OF_ITEM: u64 = 1;
const REQUEST_OF_ITEM: u64 = 3;
const PG_OF_APPEND: u64 = 4;
/// Of an extent.
const PG_OF_EXTENT: u64 = 3;
/// Of a stripe set: its own and those of its columns.
const PGS_OF_SET: [u64; 2] = [1, 3];

/// Hands over each group that a request names. `None` for what is no protobuf.
pub(crate) fn each_group(opcode: Opcode, mut message: &[u8], each: &mut impl FnMut(u32)) -> Option<()> {
    let (extents, sets) = match opcode {
        Opcode::Publish | Opcode::PublishVolatile => OF_PUBLISH,
        Opcode::Create => OF_CREATE,
        Opcode::Discard => OF_DISCARD,
        Opcode::PublishAttributes => {
            while !message.is_empty() {
                let (number, value) = next_field(&mut message)?;
                if number == PUBLISH {
                    each_group(Opcode::Publish, value.bytes()?, each)?;
                }
            }
            return Some(());
        }
        Opcode::OpenAppend => return numbers(message, &[PG_OF_APPEND], each),
        Opcode::Batch => {
            while !message.is_empty() {
                let (number, value) = next_field(&mut message)?;
                if number == ITEMS {
                    groups_of_item(value.bytes()?, each)?;
                }
            }
            return Some(());
        }
        _ => return Some(()),
    };
    while !message.is_empty() {
        let (number, value) = next_field(&mut message)?;
        if number == extents {
            numbers(value.bytes()?, &[PG_OF_EXTENT], each)?;
        } else if number == sets {
            numbers(value.bytes()?, &PGS_OF_SET, each)?;
        }
    }
    Some(())
}

/// An item as every operation that it says to be.
fn groups_of_item(item: &[u8], each: &mut impl FnMut(u32)) -> Option<()> {
    let mut opcodes = Vec::new();
    numbers(item, &[OPCODE_OF_ITEM], &mut |code| opcodes.push(code))?;
    let mut rest = item;
    while !rest.is_empty() {
        let (number, value) = next_field(&mut rest)?;
        if number != REQUEST_OF_ITEM {
            continue;
        }
        let request = value.bytes()?;
        for opcode in opcodes.iter().filter_map(|code| Opcode::from_code(u16::try_from(*code).ok()?)) {
            // Batches have no batches in them, which is refused later on.
            if opcode != Opcode::Batch {
                each_group(opcode, request, each)?;
            }
        }
    }
    Some(())
}

/// The numbers in these fields, packed or not.
fn numbers(mut message: &[u8], wanted: &[u64], each: &mut impl FnMut(u32)) -> Option<()> {
    while !message.is_empty() {
        let (number, value) = next_field(&mut message)?;
        if !wanted.contains(&number) {
            continue;
        }
        match value.packed() {
            Ok(mut packed) => {
                while !packed.is_empty() {
                    each(varint(&mut packed)? as u32);
                }
            }
            Err(number) => each(number? as u32),
        }
    }
    Some(())
}

/// Why a request names places that it must not, if so. `limited`: of a client whose key opens some volumes only; then a
/// group that is not known yet is waited for, and one of another volume is answered alike.
pub(crate) fn flaw(
    opcode: Opcode,
    message: &[u8],
    volume: VolumeId,
    map: &MapView,
    limited: bool,
) -> Option<WireError> {
    let (mut foreign, mut unknown) = (None, None);
    // Files have their extents in few groups.
    let mut last = None;
    let read = each_group(opcode, message, &mut |pg| {
        if last == Some(pg) {
            return;
        }
        last = Some(pg);
        match map.pg(PgId(pg)) {
            Some(state) if state.volume != volume.get() => foreign = Some(pg),
            Some(_) => {}
            None => unknown = Some(pg),
        }
    });
    if read.is_none() {
        return Some(WireError::new(ErrorCode::BadRequest, "the message cannot be decoded"));
    }
    if limited && let Some(pg) = foreign.or(unknown) {
        let text = format!("{} is not known here yet as a placement group of the volume; repeat", PgId(pg));
        return Some(WireError::new(ErrorCode::Overloaded, text));
    }
    let text = format!("{} is no placement group of this volume: nothing in it can be named here", PgId(foreign?));
    Some(WireError::new(ErrorCode::BadRequest, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::common::{Extent, StripeSet};
    use cairn_wire::data::PgState;
    use cairn_wire::manager::{ClusterMap, Pg};
    use cairn_wire::meta::{
        BatchItem, BatchRequest, CreateRequest, DiscardRequest, MetaHeader, OpenAppendRequest,
        PublishAttributesRequest, PublishRequest,
    };
    use prost::Message;

    fn extents(pg: u32) -> Vec<Extent> {
        vec![Extent { pg: 1, length: 5, ..Extent::default() }, Extent { pg, index: 7, ..Extent::default() }]
    }

    fn sets(pg: u32) -> Vec<StripeSet> {
        vec![StripeSet { pg: 1, index: 3, column_pgs: vec![1, pg], column_indices: vec![5, 6] }]
    }

    fn groups(opcode: Opcode, message: &[u8]) -> Vec<u32> {
        let mut found = Vec::new();
        each_group(opcode, message, &mut |pg| found.push(pg)).expect("protobuf");
        found
    }

    /// Every request that brings a place, with the place in each of its parts.
    fn requests(pg: u32) -> Vec<(Opcode, Vec<u8>)> {
        let header = Some(MetaHeader { volume: 1, partition: 1, session: 9, ..MetaHeader::default() });
        let publish =
            |extents, sets| PublishRequest { header: header.clone(), inode: 4, extents, sets, ..Default::default() };
        let both = |publish| PublishAttributesRequest { publish: Some(publish), ..Default::default() }.encode_to_vec();
        let create = |extents, sets| CreateRequest { extents, sets, ..Default::default() }.encode_to_vec();
        let discard = |extents, sets| DiscardRequest { extents, sets, ..Default::default() }.encode_to_vec();
        let batch = |opcode: Opcode, request| {
            let item = BatchItem { opcode: opcode.code().into(), request, ..Default::default() };
            BatchRequest { items: vec![BatchItem::default(), item], ..Default::default() }.encode_to_vec()
        };
        let mut twice = both(publish(extents(pg), Vec::new()));
        twice.extend(both(publish(extents(1), Vec::new())));
        vec![
            (Opcode::Publish, publish(extents(pg), Vec::new()).encode_to_vec()),
            (Opcode::Publish, publish(extents(1), sets(pg)).encode_to_vec()),
            (Opcode::PublishVolatile, publish(extents(pg), Vec::new()).encode_to_vec()),
            (Opcode::PublishAttributes, both(publish(extents(pg), Vec::new()))),
            (Opcode::PublishAttributes, both(publish(Vec::new(), sets(pg)))),
            (Opcode::PublishAttributes, twice),
            (Opcode::Create, create(extents(pg), Vec::new())),
            (Opcode::Create, create(Vec::new(), sets(pg))),
            (Opcode::Discard, discard(extents(pg), Vec::new())),
            (Opcode::Discard, discard(Vec::new(), sets(pg))),
            (Opcode::OpenAppend, OpenAppendRequest { pg, index: 2, ..Default::default() }.encode_to_vec()),
            (Opcode::Batch, batch(Opcode::Publish, publish(extents(pg), Vec::new()).encode_to_vec())),
            (Opcode::Batch, batch(Opcode::PublishAttributes, both(publish(Vec::new(), sets(pg))))),
            (Opcode::Batch, batch(Opcode::Create, create(extents(pg), Vec::new()))),
        ]
    }

    /// A tenant would have another one's chunk freed, read or overwritten by a server that may.
    #[test]
    fn groups_of_other_volumes_are_found_wherever_they_stand() {
        let pg = |pg, volume| Pg { state: Some(PgState { pg, volume, ..Default::default() }), ..Default::default() };
        let mut map = MapView::default();
        assert!(map.apply(&ClusterMap { version: 1, pgs: vec![pg(1, 1), pg(2, 2), pg(3, 1)], ..Default::default() }));
        let flaw =
            |opcode, message: &[u8], limited| super::flaw(opcode, message, VolumeId(1), &map, limited).map(|e| e.code);
        for (opcode, message) in requests(2) {
            assert_eq!(flaw(opcode, &message, false), Some(ErrorCode::BadRequest), "{}", opcode.name());
            assert_eq!(flaw(opcode, &message, true), Some(ErrorCode::Overloaded), "{}", opcode.name());
        }
        for (opcode, message) in requests(3) {
            for limited in [false, true] {
                assert_eq!(flaw(opcode, &message, limited), None, "{}", opcode.name());
            }
        }
        // One that was made a moment ago.
        for (opcode, message) in requests(9) {
            assert_eq!(flaw(opcode, &message, false), None, "{}", opcode.name());
            assert_eq!(flaw(opcode, &message, true), Some(ErrorCode::Overloaded), "{}", opcode.name());
        }
    }

    /// A decoder that takes the first of two groups of an extent would be shown the allowed one second.
    #[test]
    fn every_occurrence_counts() {
        let part = |pg| Extent { pg, ..Extent::default() }.encode_to_vec();
        let extent = [part(2), part(1)].concat();
        let mut message = vec![(3 << 3) | 2, extent.len() as u8];
        message.extend(extent);
        assert_eq!(groups(Opcode::Publish, &message), [2, 1]);
        // Not packed.
        let set = [(3 << 3), 5, (3 << 3), 6, 1 << 3, 4];
        let mut message = vec![(8 << 3) | 2, set.len() as u8];
        message.extend(set);
        assert_eq!(groups(Opcode::Publish, &message), [5, 6, 4]);
        for cut in 1..message.len() {
            assert!(flaw(Opcode::Publish, &message[..cut], VolumeId(1), &MapView::default(), false).is_some());
        }
    }
}
