//! What a disk may do with its copies of a column from the freeze of its stripe group to the commit: so that parity is
//! of bytes that survivors have, and keep.
//!
//! | the disk is asked to | allowed | then |
//! |---|---|---|
//! | append, overwrite | before the freeze | |
//! | free blocks | always | before the freeze PUNCHED, from then on DEAD: an encoder may have read their bytes |
//! | settle (punch what any member has punched) | frozen; under an attempt beyond that of the plan that it has | no plan of an earlier attempt is taken or vouched for any more |
//! | take a plan | frozen; no later attempt was seen, and no other plan came under this one | |
//! | vouch for a plan | it has that plan, no later attempt was seen, and its tables equal it | |
//!
//! Attempts are numbers that the manager's log gives: a commit counts only under the newest one. So who has vouched
//! changes nothing that a commit relies on: only settling would, and that needs an attempt that voids the commit.
//! Invariants: an attempt never falls, a disk has one plan an attempt, and is never thawed. All of it is durable before
//! it is answered. Not here: messages, files, and the manager's part. Nothing of it is used yet: see decision 18.
use cairn_types::crc32c_append;

/// A plan that a disk has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlanMark {
    pub attempt: u64,
    /// [`StripePlan::digest`](crate::stripe_plan::StripePlan::digest).
    pub digest: u64,
}

/// What a disk knows of the stripe group of a column of its.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StripeMember {
    frozen: bool,
    /// The newest attempt that it was asked to do something under.
    attempt: u64,
    plan: Option<PlanMark>,
}

/// What becomes of blocks that are freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freed {
    /// Their bytes may go at once.
    Punched,
    /// Nobody needs them, but decoding does.
    Dead,
}

/// Why it is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StripeRefusal {
    #[error("the stripe group is not frozen here")]
    NotFrozen,
    #[error("attempt {newest} to encode the stripe group has begun")]
    Superseded { newest: u64 },
    #[error("a plan of this attempt is here: what it tells of may not change")]
    Planned,
    #[error("another plan of this attempt is here")]
    OtherPlan,
    #[error("the plan is not here")]
    NoPlan,
    #[error("what is here is not what the plan tells of")]
    Differs,
}

impl StripeMember {
    /// The epoch of the freeze is durable here.
    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    /// Whether appends and overwrites are taken.
    pub fn takes_writes(&self) -> bool {
        !self.frozen
    }

    /// What a free does that comes now, whenever it was sent.
    pub fn freed(&self) -> Freed {
        if self.frozen { Freed::Dead } else { Freed::Punched }
    }

    /// Before blocks are punched that other members have punched.
    pub fn settle(&mut self, attempt: u64) -> Result<(), StripeRefusal> {
        self.see(attempt)?;
        match self.plan {
            Some(plan) if plan.attempt == attempt => Err(StripeRefusal::Planned),
            _ => Ok(()),
        }
    }

    /// Before a plan is stored; again for the same one.
    pub fn take_plan(&mut self, plan: PlanMark) -> Result<(), StripeRefusal> {
        self.see(plan.attempt)?;
        match self.plan {
            Some(known) if known.attempt == plan.attempt && known != plan => Err(StripeRefusal::OtherPlan),
            _ => {
                self.plan = Some(plan);
                Ok(())
            }
        }
    }

    /// Before it says that it has what the plan tells of: `holds` is what a comparison of the tables came to.
    pub fn vouch(&self, plan: PlanMark, holds: bool) -> Result<(), StripeRefusal> {
        if self.attempt > plan.attempt {
            return Err(StripeRefusal::Superseded { newest: self.attempt });
        }
        if self.plan != Some(plan) {
            return Err(StripeRefusal::NoPlan);
        }
        if holds { Ok(()) } else { Err(StripeRefusal::Differs) }
    }

    fn see(&mut self, attempt: u64) -> Result<(), StripeRefusal> {
        if !self.frozen {
            return Err(StripeRefusal::NotFrozen);
        }
        if attempt < self.attempt {
            return Err(StripeRefusal::Superseded { newest: self.attempt });
        }
        self.attempt = attempt;
        Ok(())
    }
}

/// What the tables of a chunk say of its bytes: of punched blocks only that they are punched, for their checksums
/// differ between members; DEAD blocks are like any.
pub fn content_of(crcs: &[u32], is_punched: impl Fn(usize) -> bool) -> u32 {
    let mut sum = 0;
    for (block, crc) in crcs.iter().enumerate() {
        sum = match is_punched(block) {
            true => crc32c_append(sum, &[0]),
            false => crc32c_append(crc32c_append(sum, &[1]), &crc.to_le_bytes()),
        };
    }
    sum
}

#[cfg(test)]
mod tests;
