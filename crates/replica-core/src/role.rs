//! What a member may do: its role in the present epoch, and how it stands in it. The only place that decides it.
//!
//! | role | read | read as a last resort | take writes | lead | be a witness | catch up | restore | free what is not here |
//! |---|---|---|---|---|---|---|---|---|
//! | leading | yes | yes | yes | yes | yes | | yes | yes |
//! | serving | yes | yes | yes | | yes | | yes | yes |
//! | syncing, joining | | of shards | yes | | | yes | | |
//! | waiting, offline | | of shards | | | | | | |
//! | former | | | | | | | | yes |
//! | retired | | | | | | | | yes |
//!
//! *Witness*: what it lists counts when members are compared. Invariant: a member that does not serve is never evidence
//! of truth.
//!
//! | right | besides needs |
//! |---|---|
//! | all | no state that was told is newer than the one on the disk; reads go by the newer one |
//! | read, by clients | the members were compared since all of them came back as older copies |
//! | read, by who wants to be sure | a young word of the manager, and some time since the first one where others serve |
//! | lead | every receiver is in the epoch, enough members serve, compared, not retired |
//! | catch up, restore | not retired |

use cairn_chunk_core::fence;
use cairn_format::pg_state::PgStateRecord;
use cairn_types::{DiskId, ErrorCode, MemberState};

use crate::message::Refused;

/// What a disk is in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Serves, and is the first one.
    Leading,
    /// Holds its part of everything that was acknowledged.
    Serving,
    /// Catches up.
    Syncing,
    /// Gets what a member has, whose place it is to have.
    Joining,
    /// Served until the group could not be written any more.
    Waiting,
    /// Missed something, and its catching up has not begun.
    Offline,
    /// Another disk has its place.
    Former,
    /// The same, and the group is complete without it: it deletes what it has.
    Retired,
}

/// What a member may do or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Answers readers and members that copy.
    Read,
    /// Answers readers who want to be sure that it is still a member.
    ReadSurely,
    /// Answers readers of shards who find too little elsewhere.
    ReadAtLast,
    /// Takes what comes along the chain, or its shard from the writer.
    Take,
    /// Is asked first: gives out indices, orders overwrites, ends what was open.
    Lead,
    /// What it lists counts.
    Witness,
    /// Copies what it lacks before it serves.
    CatchUp,
    /// Gets back what it lacks although it serves.
    Restore,
    /// May say that a chunk which is not here was freed.
    FreeAbsent,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 8] = [
        Self::Leading,
        Self::Serving,
        Self::Syncing,
        Self::Joining,
        Self::Waiting,
        Self::Offline,
        Self::Former,
        Self::Retired,
    ];

    /// The role of a disk by a group's state; `joins`: it is to have a member's place.
    pub fn of(pg: &PgStateRecord, disk: DiskId, joins: bool) -> Self {
        match fence::state_of(pg, disk) {
            Ok(MemberState::Serving) if fence::primary(pg) == Some(disk) => Self::Leading,
            Ok(MemberState::Serving) => Self::Serving,
            Ok(MemberState::Syncing) if joins => Self::Joining,
            Ok(MemberState::Syncing) => Self::Syncing,
            Ok(MemberState::Waiting) => Self::Waiting,
            Ok(MemberState::Offline) => Self::Offline,
            Err(_) if pg.retired => Self::Retired,
            Err(_) => Self::Former,
        }
    }

    /// It holds its part of everything that was acknowledged, and says so.
    pub fn serves(self) -> bool {
        matches!(self, Self::Leading | Self::Serving)
    }

    /// The row of the table.
    pub const fn rights(self) -> &'static [Right] {
        use Right::{CatchUp, FreeAbsent, Lead, Read, ReadAtLast, ReadSurely, Restore, Take, Witness};
        match self {
            Self::Leading => &[Read, ReadSurely, ReadAtLast, Take, Lead, Witness, Restore, FreeAbsent],
            Self::Serving => &[Read, ReadSurely, ReadAtLast, Take, Witness, Restore, FreeAbsent],
            Self::Syncing | Self::Joining => &[ReadAtLast, Take, CatchUp],
            Self::Waiting | Self::Offline => &[ReadAtLast],
            Self::Former | Self::Retired => &[FreeAbsent],
        }
    }
}

/// How a member stands in its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Its role by the state on its disk.
    pub role: Role,
    /// Its role by a newer state that was told and is not on its disk.
    pub told: Option<Role>,
    /// The group holds shards.
    pub shards: bool,
    /// It takes writes: it is durably in the epoch; as primary, every receiver is.
    pub entered: bool,
    /// As many serve as writes need.
    pub enough: bool,
    /// All that held everything came back as older copies of themselves, and are being compared.
    pub comparing: bool,
    /// The group takes nothing new.
    pub retired: bool,
    /// The manager said a moment ago that it is a member, and its copies were compared since its start.
    pub sure: bool,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asker {
    /// A client or a reader.
    Client,
    /// Another member, or the manager.
    Server,
}

impl Standing {
    /// Whether the member has a right now, or what it answers instead.
    pub fn check(&self, right: Right, asker: Asker) -> Result<(), Refused> {
        let no = |code| Err(Refused::because(code));
        let by_told = matches!(right, Right::Read | Right::ReadSurely | Right::ReadAtLast);
        let role = if by_told { self.told.unwrap_or(self.role) } else { self.role };
        let of_shards = right == Right::ReadAtLast && !self.shards;
        if !role.rights().contains(&right) || of_shards && !role.serves() {
            let leads = right == Right::Lead && role.serves();
            return no(if leads { ErrorCode::NotPrimary } else { ErrorCode::NotServing });
        }
        match right {
            Right::Read | Right::ReadSurely | Right::ReadAtLast if self.comparing && asker == Asker::Client => {
                no(ErrorCode::Unavailable)
            }
            Right::ReadSurely if !self.sure && !self.shards => no(ErrorCode::Unavailable),
            Right::Lead if self.retired => no(ErrorCode::PgFull),
            Right::Lead if self.comparing => no(ErrorCode::Overloaded),
            Right::Lead if !self.enough => no(ErrorCode::BelowMinimum),
            Right::Lead if !self.entered => no(ErrorCode::Overloaded),
            Right::CatchUp | Right::Restore if self.retired => no(ErrorCode::PgFull),
            _ => Ok(()),
        }
    }

    /// The same as a question.
    pub fn may(&self, right: Right) -> bool {
        self.check(right, Asker::Server).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Right::{CatchUp, FreeAbsent, Lead, Read, ReadAtLast, ReadSurely, Restore, Take, Witness};
    use Role::{Former, Joining, Leading, Offline, Retired, Serving, Syncing, Waiting};

    const RIGHTS: [Right; 9] = [Read, ReadSurely, ReadAtLast, Take, Lead, Witness, CatchUp, Restore, FreeAbsent];

    /// Who has which right, written apart from the code on purpose: `x` always, `s` only of shards.
    const ROWS: [(Role, &str); 8] = [
        (Leading, "xxxxxx.xx"),
        (Serving, "xxxx.x.xx"),
        (Syncing, "..sx..x.."),
        (Joining, "..sx..x.."),
        (Waiting, "..s......"),
        (Offline, "..s......"),
        (Former, "........x"),
        (Retired, "........x"),
    ];

    fn standing(role: Role, shards: bool) -> Standing {
        let (entered, enough, sure) = (true, true, true);
        Standing { role, told: None, shards, entered, enough, comparing: false, retired: false, sure }
    }

    /// A member would serve what it does not hold, or be taken at its word about it.
    #[test]
    fn every_role_has_its_row() {
        assert_eq!(ROWS.map(|row| row.0), Role::ALL);
        for (role, row) in ROWS {
            for (right, mark) in RIGHTS.iter().zip(row.chars()) {
                for shards in [false, true] {
                    let wanted = mark == 'x' || mark == 's' && shards;
                    assert_eq!(standing(role, shards).may(*right), wanted, "{role:?} {right:?} shards: {shards}");
                }
            }
        }
    }

    /// Each condition takes away just the rights that it is about; 8 roles × 2^6 standings × 9 rights are looked at.
    #[test]
    fn a_standing_takes_away_only_what_hangs_on_it() {
        let mut cases = 0;
        for role in Role::ALL {
            for bits in 0..64u8 {
                let is = |bit: u8| bits >> bit & 1 == 1;
                let [shards, entered, enough, comparing, retired, sure] = [0, 1, 2, 3, 4, 5].map(is);
                let now = Standing { role, told: None, shards, entered, enough, comparing, retired, sure };
                for right in RIGHTS {
                    let row = standing(role, shards).may(right);
                    let leads = entered && enough && !comparing && !retired;
                    let wanted = match right {
                        Lead => row && leads,
                        ReadSurely => row && (sure || shards),
                        CatchUp | Restore => row && !retired,
                        Read | ReadAtLast | Take | Witness | FreeAbsent => row,
                    };
                    assert_eq!(now.may(right), wanted, "{now:?} {right:?}");
                    let reads = matches!(right, Read | ReadSurely | ReadAtLast);
                    let by_clients = now.check(right, Asker::Client).is_ok();
                    assert_eq!(by_clients, wanted && !(reads && comparing), "{now:?} {right:?} of a client");
                    cases += 1;
                }
            }
        }
        assert_eq!(cases, 8 * 64 * 9);
    }

    /// A member that was told that it left would go on to show old blocks to readers.
    #[test]
    fn reads_go_by_the_newest_state_that_was_told() {
        let told = Standing { told: Some(Offline), ..standing(Serving, false) };
        assert!(!told.may(Read) && !told.may(ReadSurely) && told.may(Witness));
        let back = Standing { told: Some(Serving), ..standing(Offline, false) };
        assert!(back.may(Read) && !back.may(Take));
    }
}
