//! Batch: items of a delegation, which its holder has answered, are executed here. One entry of the log for all.
//!
//! Items are numbered, and the record of a delegation says which one is the next: so whatever of a batch was applied
//! before is passed over, whoever sends it again and however, and nothing is executed behind a gap.
//!
//! An item that is refused here, or comes to another answer than its holder gave, ends the delegation: the two are not
//! the same any more. What was before it stands. The answer says which one it was.
use crate::error::{OpError, Result};
use crate::limits::{BATCH_ITEMS_MAX, DELEGATION_IDS_STEP};
use crate::message::request::{self, BatchItem};
use crate::message::writer::{put_bytes, put_number};
use crate::namespace::{Context, Namespace};
use crate::run_item::{Item, NO_DELEGATION};
use cairn_types::{ErrorCode, WallTime, crc32c};
use cairn_wire::Opcode;

const GAP: OpError = OpError::new(
    ErrorCode::Conflict,
    "items before these have not come: the partition may have been put back from a copy; send them from the first that is missing",
);
const OTHER_ANSWER: OpError = OpError::new(
    ErrorCode::Internal,
    "the partition comes to another answer than the client gave: a fault of the program; what follows was not stored",
);
const MANY: OpError = OpError::new(ErrorCode::BadRequest, "a batch has at most 256 items");

impl Namespace {
    pub(crate) fn batch(&mut self, context: &Context<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Batch::decode(bytes)?;
        let number = request.delegation;
        let mut items = Vec::new();
        request.items.visit(|item| {
            items.push(BatchItem::decode(item)?);
            if items.len() > BATCH_ITEMS_MAX { Err(MANY) } else { Ok(()) }
        })?;
        let record = self.delegations.get(number).filter(|record| record.session == context.session);
        let next = record.ok_or(NO_DELEGATION)?.next;
        let known = usize::try_from(next.checked_sub(request.from).ok_or(GAP)?).unwrap_or(usize::MAX);
        let refused = items.iter().skip(known).find_map(|item| self.apply_item(number, item).err());
        self.put_next(number, out);
        if let Some(refused) = refused {
            put_number(out, 2, u64::from(refused.code.code()));
            put_bytes(out, 3, refused.text.as_bytes());
        }
        let ends = refused.is_some() || request.end;
        if ends {
            self.end_delegation(number);
        } else {
            let more = u64::from(request.more_ids.min(DELEGATION_IDS_STEP));
            if let Some((first, last)) = self.more_ids(number, more, request.ids_to) {
                put_number(out, 4, first);
                put_number(out, 5, last);
            }
            self.store_delegation(number);
            self.want_if_limited(number);
        }
        put_number(out, 6, self.time);
        put_number(out, 7, u64::from(ends));
        Ok(())
    }

    fn apply_item(&mut self, number: u64, item: &BatchItem<'_>) -> Result<()> {
        let opcode = u16::try_from(item.opcode).ok().and_then(Opcode::from_code).ok_or(OpError::BAD_REQUEST)?;
        let mut answer = Vec::new();
        self.run_item(number, &Item { opcode, time: WallTime(item.time_ns), request: item.request }, &mut answer)?;
        if crc32c(&answer) == item.expect { Ok(()) } else { Err(OTHER_ANSWER) }
    }

    fn put_next(&self, number: u64, out: &mut Vec<u8>) {
        put_number(out, 1, self.delegations.get(number).map_or(0, |record| record.next));
    }

    /// A limit has come since it was given, and refuses nothing as long as it lasts.
    fn want_if_limited(&self, number: u64) {
        let quota = self.stored_inode(number).map_or(0, |top| top.quota);
        if self.has_quota(quota) || self.degree() > 0 {
            self.delegations.want(number);
        }
    }
}
