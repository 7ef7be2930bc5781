//! [`Namespace::run_item`]: an operation that the holder of a delegation answers by itself.
//!
//! It is executed twice, at the holder and in the partition, by this function: with the same time, credentials and
//! request on the same inodes. So ids, generations, times and answers are the same, and the holder's namespace after
//! item k is the covered part of the partition's after item k. Nothing else changes covered inodes meanwhile, but what
//! reclaiming frees of files that are gone.
//!
//! Invariants: items are executed in order, each once, with ascending times. One that is refused changes nothing and
//! counts as none. The clock of the partition does not go on with them.
use crate::delegation::DELEGATION_LEVEL;
use crate::error::{OpError, Result};
use crate::limits::CUT_EXTENTS_MAX;
use crate::message::request::{self, Header};
use crate::namespace::{Context, Namespace};
use crate::ops::setattr::SIZE;
use cairn_types::{ErrorCode, WallTime};
use cairn_wire::Opcode;

/// An operation of a delegation.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    pub opcode: Opcode,
    pub time: WallTime,
    /// Of its header only `who` counts.
    pub request: &'a [u8],
}

pub(crate) const NO_ITEM: OpError = OpError::new(
    ErrorCode::NotSupported,
    "the operation cannot be executed in a delegated directory; end the delegation",
);
const TIME: OpError = OpError::new(ErrorCode::BadRequest, "an item is older than the one before it");
pub(crate) const NO_DELEGATION: OpError = OpError::new(
    ErrorCode::Stale,
    "the session does not lead the directory: the delegation has ended, or was another's",
);

/// What can be one.
pub const fn may_be_item(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Create
            | Opcode::Mkdir
            | Opcode::Symlink
            | Opcode::Link
            | Opcode::Unlink
            | Opcode::Rmdir
            | Opcode::Rename
            | Opcode::Setattr
            | Opcode::SetXattr
            | Opcode::RemoveXattr
            | Opcode::CreateUnnamed
            | Opcode::Publish
            | Opcode::PublishAttributes
            | Opcode::Punch
            | Opcode::Hold
            | Opcode::Release
    )
}

impl Namespace {
    /// Executes the next item of a delegation; the answer's bytes are appended to `out`.
    pub(crate) fn run_item(&mut self, number: u64, item: &Item<'_>, out: &mut Vec<u8>) -> Result<()> {
        let record = self.delegations.get(number).ok_or(NO_DELEGATION)?;
        let (session, level, now) = (record.session, record.level, item.time.0);
        if now < record.time {
            return Err(TIME);
        }
        debug_assert!(level >= DELEGATION_LEVEL && level == self.level, "the level stays while there are delegations");
        let who = Header::find(item.request)?.who;
        let before = self.delegations.act(number);
        let start = out.len();
        let result = self
            .check_item(item)
            .and_then(|()| self.mutate(item.opcode, &Context { now, who, session }, item.request, out));
        self.delegations.act(before);
        match result {
            Ok(()) => {
                let record = self.delegations.get_mut(number).expect("an item ends no delegation");
                record.next += 1;
                record.time = now;
            }
            Err(_) => out.truncate(start),
        }
        result
    }

    /// Refuses what another run at another time could answer in another way.
    fn check_item(&self, item: &Item<'_>) -> Result<()> {
        if !may_be_item(item.opcode) {
            return Err(NO_ITEM);
        }
        let (file, size) = match item.opcode {
            Opcode::Setattr => {
                let set = request::Setattr::decode(item.request)?;
                (set.inode, (set.valid & SIZE != 0).then_some(set.size))
            }
            Opcode::Publish | Opcode::PublishAttributes => {
                let publish = match item.opcode {
                    Opcode::Publish => item.request,
                    _ => request::PublishAttributes::decode(item.request)?.publish,
                };
                let publish = request::Publish::decode(publish)?;
                if publish.durability != 0 {
                    return Err(NO_ITEM);
                }
                (publish.inode, publish.set_size.then_some(publish.size))
            }
            _ => return Ok(()),
        };
        // The partition takes very many extents out in steps, whenever it comes to them.
        let is_much = match size.filter(|_| !self.delegations.hides(file)) {
            Some(size) => self.few_extents(file, size, u64::MAX, CUT_EXTENTS_MAX)?.is_none(),
            None => false,
        };
        if is_much { Err(NO_ITEM) } else { Ok(()) }
    }
}
