//! What keys of clients may do here: in the volumes that they name, as the users that they allow.
//!
//! Nobody with such a key is given a directory to lead, in which clients execute operations by themselves.
//!
//! Invariants: what a client with such a key asks is put into one form, with one header first, in whose `who` only
//! allowed users stand, and only that is looked at from then on, so that no two readers of it see two things; a request
//! within a request is treated alike. A volume that is not the key's is answered as a partition that is not here. Not
//! here: who may ask for which operation at all (`wire::audience`), groups of other volumes (`places.rs`).

use std::borrow::Cow;

use cairn_rpc::Request;
use cairn_types::{ErrorCode, PartitionId, VolumeId};
use cairn_wire::Opcode;
use cairn_wire::audience::Reach;
use cairn_wire::error::WireError;
use cairn_wire::meta::{
    AccessRequest, CreateRequest, HoldRequest, MetaHeader, OpenRequest, PublishAttributesRequest, ReadStaleRequest,
    SetLockRequest, SetattrRequest,
};
use cairn_wire::rights::{Access, Rights, Users};
use prost::Message;

use crate::header::fields;
use crate::partition::{Common, Partition};

/// Bits of `SetattrRequest.valid`.
const UID: u32 = 1 << 1;
const GID: u32 = 1 << 2;
/// Of `SetLockRequest`: a lock of fcntl(2), for writing.
const POSIX: u32 = 0;
const WRITE_LOCK: u32 = 2;
/// Field of a Mkdir that asks for a delegation.
const ASK: u64 = 9;
/// The bit of a permission mask that asks for writing.
const WRITE: u32 = 2;

/// The header of a request, and nothing else of it.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OfHeader {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<MetaHeader>,
}

fn bad() -> WireError {
    WireError::new(ErrorCode::BadRequest, "the message cannot be decoded")
}

/// The request as it is done for the holder of a key with limits; as it came for everybody else.
pub(crate) fn in_allowed_names<'a>(request: &Request<'a>, opcode: Opcode) -> Result<Cow<'a, [u8]>, WireError> {
    match request.peer.limits() {
        None => Ok(Cow::Borrowed(request.message)),
        Some((holder, rights)) => renamed(holder, rights.users(), opcode, request.message).map(Cow::Owned),
    }
}

pub(crate) fn renamed(holder: &str, users: &Users, opcode: Opcode, message: &[u8]) -> Result<Vec<u8>, WireError> {
    if opcode == Opcode::ReadStale {
        return renamed_within(holder, users, message);
    }
    let refused = |why: String| WireError::new(ErrorCode::KeyForbids, format!("the key of {holder} {why}"));
    // What a client has answered by itself names users that were not looked at here.
    let leads = matches!(users, Users::Any);
    if !leads && opcode == Opcode::Batch {
        return Err(refused("says as which users its holder works, so it leads no directories".to_owned()));
    }
    // All headers that there are, as one.
    let mut header = OfHeader::decode(message).map_err(|_| bad())?.header.ok_or_else(bad)?;
    header.who = users.judge(header.who.take()).map_err(refused)?;
    let who = header.who.as_ref().map(|who| who.uid);
    let mut out = OfHeader { header: Some(header) }.encode_to_vec();
    for (number, field) in fields(message).ok_or_else(bad)? {
        if number != 1 && (opcode != Opcode::Mkdir || number != ASK) {
            out.extend_from_slice(field);
        }
    }
    // Who is not root gives nothing away, which is held against the files.
    if who == Some(0) && !owners_are_allowed(users, opcode, &out)? {
        return Err(refused("does not give files to that user or group".to_owned()));
    }
    Ok(out)
}

fn renamed_within(holder: &str, users: &Users, message: &[u8]) -> Result<Vec<u8>, WireError> {
    let mut stale = ReadStaleRequest::decode(message).map_err(|_| bad())?;
    let inner = u16::try_from(stale.opcode).ok().and_then(Opcode::from_code).filter(|inner| inner.may_be_stale());
    let inner = inner.ok_or_else(|| {
        let text = format!("operation {:#06x} is none that a member which does not lead may answer", stale.opcode);
        WireError::new(ErrorCode::UnknownOperation, text)
    })?;
    stale.request = renamed(holder, users, inner, &stale.request)?;
    Ok(stale.encode_to_vec())
}

/// Whether files come to belong to nobody but users and groups of the key.
fn owners_are_allowed(users: &Users, opcode: Opcode, message: &[u8]) -> Result<bool, WireError> {
    let set = |set: &SetattrRequest| {
        users.may_own((set.valid & UID != 0).then_some(set.uid), (set.valid & GID != 0).then_some(set.gid))
    };
    Ok(match opcode {
        Opcode::Create => {
            let create = CreateRequest::decode(message).map_err(|_| bad())?;
            !create.set_owner || users.may_own(Some(create.uid), Some(create.gid))
        }
        Opcode::Setattr => set(&SetattrRequest::decode(message).map_err(|_| bad())?),
        Opcode::PublishAttributes => {
            let request = PublishAttributesRequest::decode(message).map_err(|_| bad())?;
            request.attributes.is_none_or(|attributes| set(&attributes))
        }
        _ => true,
    })
}

/// Why the holder of a key with limits gets no answer from a partition, if so. `here`: it is open on this node.
pub(crate) fn judge(
    common: &Common,
    (holder, rights): (&str, &Rights),
    opcode: Opcode,
    message: &[u8],
    (id, here): (PartitionId, Option<&Partition>),
) -> Result<(), WireError> {
    let access = {
        let map = common.map.read();
        // What this node has open is the truth; the map tells of others.
        let volume = here
            .map(|partition| partition.state.volume)
            .or_else(|| map.partition(id).map(|partition| VolumeId(partition.volume)));
        volume
            .and_then(|volume| map.volume(volume))
            .filter(|volume| !volume.deleted)
            .and_then(|volume| rights.of(&volume.name))
    };
    match access {
        None => Err(not_here(id)),
        Some(Access::Read) if changes(opcode, message)? => {
            let text = format!(
                "{} changes a volume that the key of {holder} may only read; who runs the cluster makes another one with cairn key client \
                 --volume VOLUME:rw",
                opcode.name()
            );
            Err(WireError::new(ErrorCode::KeyForbids, text))
        }
        Some(_) => Ok(()),
    }
}

/// Whether a key with limits lets its holder read the volume of a partition, and not change it.
pub(crate) fn may_only_read(common: &Common, rights: &Rights, partition: &Partition) -> bool {
    let map = common.map.read();
    let volume = map.volume(partition.state.volume);
    volume.is_some_and(|volume| rights.of(&volume.name) == Some(Access::Read))
}

/// What is answered about a partition of which this node knows nothing, and to whom it is none of his.
#[cold]
pub(crate) fn not_here(partition: PartitionId) -> WireError {
    let text = format!("{partition} is not served by this node; refresh the cluster map");
    WireError::new(ErrorCode::UnknownPartition, text)
}

/// Whether something changes the volume, or is the beginning of that.
fn changes(opcode: Opcode, message: &[u8]) -> Result<bool, WireError> {
    Ok(match opcode {
        Opcode::Open => OpenRequest::decode(message).map_err(|_| bad())?.access & WRITE != 0,
        Opcode::Access => AccessRequest::decode(message).map_err(|_| bad())?.mask & WRITE != 0,
        Opcode::Hold => HoldRequest::decode(message).map_err(|_| bad())?.write,
        // As the system does it: to lock for writing, a file has to be open for writing. flock(2) does not ask.
        Opcode::SetLock => {
            let lock = SetLockRequest::decode(message).map_err(|_| bad())?;
            lock.kind == POSIX && lock.r#type == WRITE_LOCK
        }
        _ => opcode.audience().reach() != Some(Reach::Read),
    })
}

#[cfg(test)]
mod tests;
