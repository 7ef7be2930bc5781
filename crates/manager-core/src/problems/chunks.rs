//! Chunks that members should have and have not: those that are brought back, and those that nobody has.
use super::{Problems, names};
use crate::pg::Pg;
use crate::soft::Soft;
use crate::state::State;
use cairn_types::{DiskId, MemberState, PgId};

/// Members of groups in use with chunks that are not there, of which `part` says how many count.
fn lacking<'a>(
    state: &'a State,
    soft: &'a Soft,
    part: impl Fn(&(u64, u64)) -> u64 + 'a,
) -> impl Iterator<Item = ((PgId, DiskId), u64)> + 'a {
    // One that catches up lacks more than that, and is named as such.
    let serves = |disk: DiskId, pg: &Pg| !pg.retired && pg.state_of(disk) == Some(MemberState::Serving);
    let is_member = move |pg: PgId, disk: DiskId| state.pg(pg).is_some_and(|pg| serves(disk, pg));
    let counts = soft.missing.iter().map(move |(at, counts)| (*at, part(counts)));
    counts.filter(move |((pg, disk), chunks)| *chunks > 0 && is_member(*pg, *disk))
}

fn lacking_at(state: &State, ((pg, disk), chunks): ((PgId, DiskId), u64)) -> String {
    let at = state.disk(disk).map_or_else(String::new, |d| format!(" ({} on {})", d.path, d.node));
    format!("{chunks} of {pg} on {disk}{at}")
}

/// Chunks whose files were damaged or gone, and of which no other member has anything.
pub(super) fn lost(state: &State, soft: &Soft, out: &mut Problems) {
    let lost = || lacking(state, soft, |(_, lost)| *lost);
    let chunks: u64 = lost().map(|(_, chunks)| chunks).sum();
    if chunks > 0 {
        out.critical(format!(
            "{} lost: damaged or gone, and no other member has anything of them: {}; `cairn admin fsck` names the files that lost \
             bytes; restore these from elsewhere, or remove them; if it names none, nothing was lost: this goes within an \
             hour, or, where the disk has a file pg/GROUP/CHUNK.lost, when that is removed and its node restarted",
            if chunks == 1 { "1 chunk is".into() } else { format!("{chunks} chunks are") },
            names(lost().map(|member| lacking_at(state, member))),
        ));
    }
}

/// Chunks that others have.
pub(super) fn missing(state: &State, soft: &Soft, out: &mut Problems) {
    let missing = || lacking(state, soft, |(all, lost)| all.saturating_sub(*lost));
    let chunks: u64 = missing().map(|(_, chunks)| chunks).sum();
    if chunks > 0 {
        out.warning(format!(
            "{} missing on members that serve: {}; they are brought back from the other members, and tried again by \
             themselves until they are there; meanwhile they have fewer copies or shards than they should; bring missing members back",
            if chunks == 1 { "1 chunk is".into() } else { format!("{chunks} chunks are") },
            names(missing().map(|member| lacking_at(state, member))),
        ));
    }
}
