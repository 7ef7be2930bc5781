//! The limit of a whole volume over its partitions: the partition of the root, its *home*, lends parts of it to the
//! others.
//!
//! The home has a record for each other partition: a number that ascends, what the partition is to have (its target),
//! and what it may have at most (its ceiling). A partition has its bound, and the number under which it was told it.
//! Everything is in the logs:
//!
//! | entry | at | does |
//! |---|---|---|
//! | `Lend` | home | a new number and target, no more than there is left; the ceiling becomes no less than the target |
//! | `SetBound` | a partition | a later number: the bound is the target. Where more is in use, nothing more is used until it is raised |
//! | `NoteLent` | home | the bound that a partition has logged under the latest number, or what it uses if that is more, is its ceiling |
//! | `NoteLimit` | home | all partitions have bounds: the limit that was set last holds |
//! | `AtLimit` | any | a client's request for which room was asked for in vain: what does not fit is refused for good |
//!
//! So a raise is logged at the home first, and a smaller bound at the partition first; repeats and late messages have
//! an old number and do nothing. Numbers contain the logged time, so they ascend also when the home is put back from an
//! older copy.
//!
//! Invariants: neither a partition's bound nor its use is above its ceiling; what the home uses, and all ceilings, are
//! together not above the limit, but where the limit was made smaller than that: then nothing is lent and nothing more
//! used there. So no moment has more in use than the limit. What was prepared for another partition's operation and not
//! made yet counts as in use. Not here: who gets how much (`lend_plan`), who asks whom and when (`meta`).
use crate::encoding::{BoundRecord, LentRecord, SettingRecord};
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::lend_plan::Asker;
use crate::namespace::Namespace;
use cairn_types::{ErrorCode, InodeId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{self, VolumeBound};
use prost::Message;
use std::collections::BTreeMap;

/// Feature level from which on a volume of several partitions can have a limit.
pub const LEND_LEVEL: u16 = 7;

/// Bytes and inodes; each `u64::MAX` where any number is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amounts {
    pub bytes: u64,
    pub inodes: u64,
}

impl Amounts {
    pub const ANY: Self = Self { bytes: u64::MAX, inodes: u64::MAX };
    pub const NONE: Self = Self { bytes: 0, inodes: 0 };

    pub const fn new(bytes: u64, inodes: u64) -> Self {
        Self { bytes, inodes }
    }
    /// With `of` for each.
    pub fn both(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self { bytes: of(self.bytes, other.bytes), inodes: of(self.inodes, other.inodes) }
    }
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.both(other, u64::saturating_add)
    }
    /// What is left of it; of any number any number.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.both(other, |all, part| if all == u64::MAX { all } else { all.saturating_sub(part) })
    }
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.both(other, u64::max)
    }
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        self.both(other, u64::min)
    }
    /// Whether each of both is enough for the other's.
    pub const fn covers(self, other: Self) -> bool {
        self.bytes >= other.bytes && self.inodes >= other.inodes
    }
}

/// Why there is no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtLimit {
    UsedUp,
    /// What may be left is lent to a partition that did not answer.
    Unreached,
}

impl AtLimit {
    /// As in messages.
    pub const fn code(self) -> u32 {
        match self {
            AtLimit::UsedUp => 1,
            AtLimit::Unreached => 2,
        }
    }
    /// `None`: not asked yet.
    pub const fn from_code(code: u32) -> Option<AtLimit> {
        match code {
            0 => None,
            2 => Some(AtLimit::Unreached),
            _ => Some(AtLimit::UsedUp),
        }
    }
}

/// As in the tree, found again when a checkpoint is loaded; and what is known of the request at hand.
#[derive(Debug, Default)]
pub(crate) struct Lending {
    /// At the home, by partition.
    pub(crate) lent: BTreeMap<u32, LentRecord>,
    pub(crate) setting: Option<SettingRecord>,
    /// Elsewhere.
    pub(crate) bound: Option<BoundRecord>,
    /// When there is less left of the bound than this, more is asked for. No state.
    low: Amounts,
    /// Why the request at hand is refused if it does not fit. No state.
    pub(crate) at_limit: Option<AtLimit>,
}

const SHORT: &str =
    "what this partition may use of the volume's limit is used up; it asks for more, repeat in a moment";
const USED_UP: [[&str; 2]; 2] = [
    [
        "the quota of the volume on bytes is used up; remove files or ask for more",
        "the quota of the volume on the number of files is used up; remove files or ask for more",
    ],
    [
        "the quota of the volume on bytes is used up, or what is left of it is lent to a meta partition that does not answer (`cairn admin \
         partition ls`); remove files or ask for more",
        "the quota of the volume on the number of files is used up, or what is left of it is lent to a meta partition that does not answer \
         (`cairn admin partition ls`); remove files or ask for more",
    ],
];
const NOT_HOME: OpError =
    OpError::new(ErrorCode::BadRequest, "an entry about the limit of a volume that is for another partition");

/// For the leader and the checks.
impl Namespace {
    /// Whether this is the partition of the root, which lends.
    pub fn is_home(&self) -> bool {
        self.is_own(InodeId::ROOT.0)
    }

    /// The volume's limits, at its home; `ANY` where there is none.
    fn limits(&self) -> Amounts {
        let or_any = |max: u64| if max == 0 { u64::MAX } else { max };
        self.volume_quota.map_or(Amounts::ANY, |(bytes, inodes)| Amounts::new(or_any(bytes), or_any(inodes)))
    }

    /// What counts against the volume's limit here, with inodes that are given out to operations of other partitions.
    pub fn volume_use(&self) -> Amounts {
        let root = u64::from(self.is_home());
        let inodes = self.counters.inodes.saturating_sub(root) + self.txs.given();
        Amounts::new(self.counters.stored_bytes, inodes)
    }

    /// What may be used here, or lent, beyond what is.
    pub fn volume_room(&self) -> Amounts {
        let limits = match self.lending.bound {
            Some(bound) => bound.max,
            None if self.is_home() => self.limits(),
            None => Amounts::ANY,
        };
        if limits == Amounts::ANY {
            return limits;
        }
        let room = limits.minus(self.volume_use());
        self.lending.lent.values().fold(room, |room, lent| room.minus(lent.ceiling)).min(self.room_before_listing())
    }

    /// What a partition may have when all others, and the home, keep what they have at most.
    fn room_for(&self, partition: u32) -> Amounts {
        self.limits().minus(self.taken_but(partition)).min(self.room_before_listing())
    }

    /// What the home uses, and all others but one have at most.
    fn taken_but(&self, partition: u32) -> Amounts {
        let others = self.lending.lent.iter().filter(|(other, _)| **other != partition);
        others.fold(self.volume_use(), |taken, (_, lent)| taken.plus(lent.ceiling))
    }

    /// A partition that asks for room at its home, or the home itself, with what is said of it; `held`: what is about
    /// to be used at the home.
    pub fn asker(&self, partition: u32, used: Amounts, held: Amounts) -> Asker {
        let ceiling = self.lent_to(partition).ceiling;
        if partition == self.partition {
            let taken = self.lending.lent.values().fold(held, |taken, lent| taken.plus(lent.ceiling));
            let used = self.volume_use();
            return Asker { limits: self.limits(), taken, used, ceiling: used, ..Asker::default() };
        }
        let taken = self.taken_but(partition).plus(held);
        Asker { limits: self.limits(), taken, used, ceiling, ..Asker::default() }
    }

    /// As long as some partition may have no bound, everything may be in use by it.
    fn room_before_listing(&self) -> Amounts {
        if self.lending.setting.is_none_or(|setting| setting.listed) || !self.is_one_of_several() {
            return Amounts::ANY;
        }
        self.limits().both(Amounts::NONE, |limit, none| if limit == u64::MAX { limit } else { none })
    }

    /// Whether so much more may be used here. If not, and others may have some left, it is not final: the leader asks
    /// them.
    pub(crate) fn check_volume(&self, bytes: u64, inodes: u64) -> Result<()> {
        // An inode that is made elsewhere counts there.
        let inodes = if self.txs.new_guest().is_some() { 0 } else { inodes };
        let (room, wanted) = (self.volume_room(), Amounts::new(bytes, inodes));
        if room.covers(wanted) {
            return Ok(());
        }
        if self.lending.at_limit.is_none() && self.is_one_of_several() {
            return Err(OpError { asks_for: (bytes, inodes), ..OpError::new(ErrorCode::LeaseHeld, SHORT) });
        }
        let texts = USED_UP[usize::from(self.lending.at_limit == Some(AtLimit::Unreached))];
        Err(OpError::new(ErrorCode::QuotaExceeded, texts[usize::from(room.bytes >= bytes)]))
    }

    /// Why an inode could not be made here for another partition, without changing anything.
    pub fn lacks_inode(&self) -> bool {
        self.volume_room().inodes == 0
    }

    /// What a request asks for that found no room and is not refused for good.
    pub fn asks_for(error: &WireError) -> Option<Amounts> {
        let rest = error.message.strip_prefix(SHORT).filter(|_| error.code == ErrorCode::LeaseHeld)?;
        let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok());
        Some(Amounts::new(numbers.next()?, numbers.next()?))
    }

    /// Whether more of the limit should be asked for before requests have to wait.
    #[inline]
    pub fn is_low(&self) -> bool {
        match self.lending.bound {
            None => false,
            Some(bound) => {
                let left = bound.max.minus(self.volume_use());
                let low = self.lending.low;
                (left.bytes <= low.bytes && left.bytes != u64::MAX)
                    || (left.inodes <= low.inodes && left.inodes != u64::MAX)
            }
        }
    }

    /// What this partition may use, if it was told.
    pub fn bound(&self) -> Option<BoundRecord> {
        self.lending.bound
    }

    /// What was lent to others, at the home.
    pub fn lent(&self) -> &BTreeMap<u32, LentRecord> {
        &self.lending.lent
    }

    /// What is known of another partition, at the home.
    pub fn lent_to(&self, partition: u32) -> LentRecord {
        let listed = self.lending.setting.is_none_or(|setting| setting.listed);
        let ceiling = if listed && self.has_volume_limit() { Amounts::NONE } else { Amounts::ANY };
        self.lending.lent.get(&partition).copied().unwrap_or(LentRecord { number: 0, target: ceiling, ceiling })
    }

    /// The number of the next bound of a partition that says that it has this one. It is above all that were given, by
    /// a state too of which this one is an older copy: that was earlier.
    pub fn next_number(&self, partition: u32, has: u64) -> u64 {
        self.lent_to(partition).number.max(has).max(self.time) + 1
    }

    /// The entry that set the limit, as long as partitions may not have heard of it.
    pub fn limit_being_set(&self) -> Option<u64> {
        self.lending.setting.filter(|_| self.is_one_of_several()).map(|setting| setting.number)
    }

    /// Whether all partitions are known that may have no bound.
    pub fn lends_to_all(&self) -> bool {
        self.lending.setting.is_none_or(|setting| setting.listed)
    }

    /// Whether what was lent is above the limit together with what is used here.
    pub fn lent_too_much(&self) -> bool {
        let lent = self.lending.lent.values().fold(self.volume_use(), |sum, lent| sum.plus(lent.ceiling));
        self.limits().both(lent, |limit, lent| u64::from(limit < u64::MAX && lent > limit)) != Amounts::NONE
    }

    /// Partitions that still have bounds where there is no limit any more.
    pub fn bounds_to_lift(&self) -> bool {
        let limits = self.limits();
        self.lending.lent.values().any(|lent| {
            let kept = limits.both(lent.ceiling, |limit, has| u64::from(limit == u64::MAX && has < u64::MAX));
            kept != Amounts::NONE
        })
    }

    /// Where there is no limit, `ANY`; elsewhere what is said.
    #[must_use]
    pub fn within_limits(&self, amounts: Amounts) -> Amounts {
        self.limits().both(amounts, |limit, amount| if limit == u64::MAX { limit } else { amount })
    }
}

/// Entries.
impl Namespace {
    pub(crate) fn apply_lending(&mut self, opcode: Opcode, bytes: &[u8]) -> Result<()> {
        let bad = |_| OpError::BAD_REQUEST;
        match opcode {
            Opcode::SetBound => {
                let bound = meta::SetBound::decode(bytes).map_err(bad)?.bound.ok_or(OpError::BAD_REQUEST)?;
                self.set_bound(bound)
            }
            _ if !self.is_home() => Err(NOT_HOME),
            Opcode::Lend => {
                meta::Lend::decode(bytes).map_err(bad)?.bounds.into_iter().for_each(|bound| self.lend(bound));
                Ok(())
            }
            Opcode::NoteLent => {
                meta::NoteLent::decode(bytes).map_err(bad)?.bounds.into_iter().for_each(|bound| self.note_lent(bound));
                Ok(())
            }
            _ => {
                self.note_limit(&meta::NoteLimit::decode(bytes).map_err(bad)?);
                Ok(())
            }
        }
    }

    fn lend(&mut self, bound: VolumeBound) {
        let known = self.lent_to(bound.partition);
        if bound.number <= known.number || bound.partition == self.partition {
            return;
        }
        let target = amounts(bound).min(self.room_for(bound.partition));
        let ceiling = known.ceiling.max(target);
        self.put_lent(bound.partition, LentRecord { number: bound.number, target, ceiling });
    }

    fn note_lent(&mut self, bound: VolumeBound) {
        if let Some(known) = self.lending.lent.get(&bound.partition)
            && known.number == bound.number
        {
            let has = amounts(bound);
            self.put_lent(bound.partition, LentRecord { number: bound.number, target: has, ceiling: has });
        }
    }

    /// Of a limit that was set anew since, nothing is noted.
    fn note_limit(&mut self, note: &meta::NoteLimit) {
        let limits = self.limits();
        let has_bound = |partition: &u32| {
            let lent = self.lending.lent.get(partition).map_or(Amounts::ANY, |lent| lent.ceiling);
            limits.both(lent, |limit, lent| u64::from(limit < u64::MAX && lent == u64::MAX)) == Amounts::NONE
        };
        if self.lending.setting.is_some_and(|setting| setting.number == note.number)
            && note.partitions.iter().all(has_bound)
        {
            self.put_setting(None);
        }
    }

    fn set_bound(&mut self, told: VolumeBound) -> Result<()> {
        if self.is_home() {
            return Err(NOT_HOME);
        }
        if self.lending.bound.is_none_or(|bound| told.number > bound.number) {
            let bound = BoundRecord { number: told.number, max: amounts(told) };
            let mut value = Vec::new();
            bound.encode(&mut value);
            self.tree.put(key::bound().as_bytes(), &value);
            self.lending.bound = Some(bound);
            self.set_low();
        }
        Ok(())
    }

    fn set_low(&mut self) {
        let left = self.lending.bound.map_or(Amounts::ANY, |bound| bound.max.minus(self.volume_use()));
        self.lending.low = left.both(left, |left, _| left / 2);
    }

    /// A client's request that waited for room.
    pub(crate) fn apply_at_limit(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> std::result::Result<(), WireError> {
        let request = meta::AtLimit::decode(bytes).map_err(|_| OpError::BAD_REQUEST.to_wire())?;
        let opcode = u16::try_from(request.opcode).ok().and_then(Opcode::from_code);
        let opcode = opcode.filter(|opcode| opcode.is_meta_mutation() && !opcode.is_internal());
        let opcode = opcode.ok_or_else(|| OpError::BAD_REQUEST.to_wire())?;
        self.lending.at_limit = AtLimit::from_code(request.why);
        let result = self.apply_once(opcode, &request.request, out, |_| ());
        self.lending.at_limit = None;
        result
    }

    /// The volume's limit was set, or taken away.
    pub(crate) fn limit_changed(&mut self, had_one: bool) {
        let listed = had_one && self.lends_to_all();
        if self.has_volume_limit() && !listed {
            // While there was none, a partition may have begun without a bound; and late answers are of before.
            for (partition, lent) in self.lending.lent.clone() {
                let number = self.next_number(partition, lent.number);
                self.put_lent(partition, LentRecord { number, target: Amounts::ANY, ceiling: Amounts::ANY });
            }
        }
        let setting = SettingRecord { number: self.applied, listed };
        self.put_setting((self.has_volume_limit() && self.is_one_of_several()).then_some(setting));
    }

    /// This state may be older than what others were told: nobody knows what they have until they are asked.
    pub(crate) fn forget_lent(&mut self) {
        if self.level < LEND_LEVEL || !self.is_home() {
            return;
        }
        for (partition, lent) in self.lending.lent.clone() {
            let number = self.next_number(partition, lent.number);
            self.put_lent(partition, LentRecord { number, target: Amounts::ANY, ceiling: Amounts::ANY });
        }
        if self.has_volume_limit() {
            self.put_setting(Some(SettingRecord { number: self.applied, listed: false }));
        }
    }

    fn put_lent(&mut self, partition: u32, lent: LentRecord) {
        let mut value = Vec::new();
        lent.encode(&mut value);
        self.tree.put(key::lent(partition).as_bytes(), &value);
        self.lending.lent.insert(partition, lent);
    }

    fn put_setting(&mut self, setting: Option<SettingRecord>) {
        match setting {
            Some(setting) => {
                let mut value = Vec::new();
                setting.encode(&mut value);
                self.tree.put(key::setting().as_bytes(), &value);
            }
            None => drop(self.tree.remove(key::setting().as_bytes())),
        }
        self.lending.setting = setting;
    }

    /// What is not in the checkpoint's header, found again when one is loaded.
    pub(crate) fn found_lending(&self) -> Result<Lending> {
        let mut found = Lending::default();
        let prefix = key::prefix(0, Kind::Lent);
        let mut range = self.tree.prefix(prefix.as_bytes());
        while let Some((bytes, value)) = range.next() {
            let partition = key::partition(&bytes[prefix.as_bytes().len()..]).ok_or(OpError::DAMAGED)?;
            found.lent.insert(partition, LentRecord::decode(value).ok_or(OpError::DAMAGED)?);
        }
        if let Some(value) = self.tree.get(key::setting().as_bytes()) {
            found.setting = Some(SettingRecord::decode(value).ok_or(OpError::DAMAGED)?);
        }
        if let Some(value) = self.tree.get(key::bound().as_bytes()) {
            found.bound = Some(BoundRecord::decode(value).ok_or(OpError::DAMAGED)?);
        }
        Ok(found)
    }

    pub(crate) fn load_lending(&mut self) -> Result<()> {
        self.lending = self.found_lending()?;
        self.set_low();
        Ok(())
    }

    /// Whether what is in memory is what is in the tree.
    pub(crate) fn holds_lending(&self) -> bool {
        let known = &self.lending;
        known.at_limit.is_none()
            && self.found_lending().is_ok_and(|found| {
                (&found.lent, found.setting, found.bound) == (&known.lent, known.setting, known.bound)
            })
    }
}

/// Whether some version wrote this.
pub(crate) fn is_record(kind: Kind, suffix: &[u8], value: &[u8]) -> bool {
    match kind {
        Kind::Lent => key::partition(suffix).is_some() && LentRecord::decode(value).is_some(),
        Kind::Setting => suffix.is_empty() && SettingRecord::decode(value).is_some(),
        Kind::Bound => suffix.is_empty() && BoundRecord::decode(value).is_some(),
        _ => false,
    }
}

const fn amounts(bound: VolumeBound) -> Amounts {
    Amounts::new(bound.bytes, bound.inodes)
}
