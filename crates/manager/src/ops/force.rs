//! ForcePg: an operator gives up disks that a placement group waits for. Only ever by his explicit word.
//!
//! Refused while a disk that is named serves, or one that the group waits for is not named: that one holds everything.
//! Among the other members those with the most bytes serve from then on, as few as reading needs; the rest copies from
//! them. Where every disk that had a part of the group is named, disks without anything take places, and the group goes
//! on empty. Indices that the lost members may have given are skipped. Without `confirmed` this only tells what would
//! be.
use super::TAKEOVER_PATIENCE;
use super::register::is_heard;
use crate::manager::Manager;
use cairn_env::Rng;
use cairn_manager_core::command::{Command, ForcePg, Swap};
use cairn_manager_core::fresh::fresh;
use cairn_manager_core::{Pg, State};
use cairn_rpc::CallOptions;
use cairn_types::{DiskId, ErrorCode, MemberState, PgId};
use cairn_wire::Opcode;
use cairn_wire::data::{ListChunksRequest, ListChunksResponse};
use cairn_wire::error::WireError;
use cairn_wire::manager::{ForceCandidate, ForcePgRequest, ForcePgResponse};
use std::time::Duration;

/// For a member to list a part of its chunks.
const LIST_DEADLINE: Duration = Duration::from_secs(5);
const LIST_PART: u32 = 4096;
/// Indices skipped: more than can have been given while a member was away.
const INDEX_SKIP: u32 = 1 << 24;

/// What is asked for, and among whom there is a choice.
struct Case {
    pg: Pg,
    lost: Vec<DiskId>,
    /// Members that have to serve as they are.
    missing: usize,
    candidates: Vec<(DiskId, String)>,
}

impl Manager {
    pub(crate) async fn force_pg(&self, request: ForcePgRequest) -> Result<ForcePgResponse, WireError> {
        if let Some(epoch) = self.look_in_cluster(|state, _| Ok(is_known_loss(state, &request)))? {
            return self.confirm_older(request.pg, epoch).await;
        }
        let case = self.look_in_cluster(|state, _| open_case(state, &request))?;
        let mut found = Vec::new();
        for (disk, address) in &case.candidates {
            match self.count_chunks(address, case.pg.id, *disk).await {
                Ok(candidate) => found.push(candidate),
                Err(error) => {
                    tracing::warn!(pg = %case.pg.id, %disk, %error, "a member that could serve does not answer")
                }
            }
        }
        // Stable: the first member of equal ones.
        found.sort_by_key(|c| std::cmp::Reverse((c.bytes, c.chunks)));
        // Of a disk that was replaced and the one in its place, the one with more.
        let mut places = Vec::new();
        found.retain(|c| {
            let place = case.pg.position_of(DiskId(c.disk));
            let first = !places.contains(&place);
            places.push(place);
            first
        });
        let promoted: Vec<u32> = found.iter().take(case.missing).map(|c| c.disk).collect();
        let fresh = self.fresh_for(&case, &promoted)?;
        let meaning = meaning(&case, &found, &fresh);
        if request.confirmed {
            let high = found.iter().map(|c| c.high_water).max().unwrap_or(0).saturating_add(INDEX_SKIP);
            let unknown = if fresh.is_empty() { 0 } else { case.pg.index_floor_of_none() };
            let command = ForcePg {
                pg: request.pg,
                epoch: case.pg.epoch.get(),
                lost: request.lost_disks.clone(),
                promoted: promoted.clone(),
                index_floor: if promoted.is_empty() { unknown } else { high.max(unknown) },
                fresh: fresh.iter().map(|(old, new)| Swap { old: old.get(), new: new.get() }).collect(),
            };
            tracing::warn!(pg = %case.pg.id, lost = ?case.lost, ?promoted, ?fresh, %meaning, "an operator gives up disks of a group");
            self.execute(Command::ForcePg(command)).await?;
            self.push(&[case.pg.id]);
            self.pushed(&[case.pg.id], TAKEOVER_PATIENCE).await;
        }
        self.look(|state, _| ForcePgResponse {
            state: state.pg(case.pg.id).map(|pg| state.pg_state(pg)),
            serving: promoted.into_iter().chain(fresh.iter().map(|(_, new)| new.get())).collect(),
            candidates: found,
            meaning,
        })
    }

    /// Disks without anything, where those that could serve are too few and nobody is left who may have something.
    fn fresh_for(&self, case: &Case, promoted: &[u32]) -> Result<Vec<(DiskId, DiskId)>, WireError> {
        let promoted: Vec<DiskId> = promoted.iter().copied().map(DiskId).collect();
        let count = case.missing - promoted.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let left: Vec<DiskId> = case.pg.left_without(&case.lost).filter(|disk| !promoted.contains(disk)).collect();
        if !left.is_empty() {
            return Err(refused(too_few(case, promoted.len(), &left)));
        }
        let seed = Rng::u64(self.rng.as_ref());
        self.look_in_cluster(|state, leading| {
            let now = self.now();
            let wanted = (&case.lost[..], &promoted[..], count);
            let found = fresh(state, &leading.soft, &case.pg, wanted, |node| is_heard(leading, node, now), seed);
            found.map_err(|why| {
                let (id, lost) = (case.pg.id, names(&case.lost));
                refused(format!(
                    "{id} has nobody left without {lost}, so another disk has to take a place in it and go on empty, and there is                      none: {why}; then repeat"
                ))
            })
        })
    }

    /// An operator knows that a group was put together of older copies.
    async fn confirm_older(&self, pg: u32, epoch: u64) -> Result<ForcePgResponse, WireError> {
        self.execute(Command::ForcePg(ForcePg { pg, epoch, ..ForcePg::default() })).await?;
        let meaning =
            "that its disks came back as older copies of themselves is known, and is no problem of the status any more";
        self.look(|state, _| ForcePgResponse {
            state: state.pg(PgId(pg)).map(|pg| state.pg_state(pg)),
            meaning: meaning.into(),
            ..ForcePgResponse::default()
        })
    }

    async fn count_chunks(&self, address: &str, pg: PgId, disk: DiskId) -> Result<ForceCandidate, WireError> {
        let mut counted = ForceCandidate { disk: disk.get(), ..ForceCandidate::default() };
        let mut after = None;
        loop {
            let request = ListChunksRequest {
                disk: disk.get(),
                pg: pg.get(),
                after_index: after.unwrap_or(0),
                from_start: after.is_none(),
                count_max: LIST_PART,
                ..ListChunksRequest::default()
            };
            let options = CallOptions::new(LIST_DEADLINE);
            let answer = self.client.call(address, Opcode::ListChunks.code(), &request, (), options).await;
            let part: ListChunksResponse = answer
                .and_then(|answer| answer.decode())
                .map_err(|error| WireError::new(ErrorCode::Unavailable, error.to_string()))?;
            counted.chunks += part.chunks.len() as u64;
            counted.bytes += part.chunks.iter().map(|chunk| chunk.length).sum::<u64>();
            counted.high_water = counted.high_water.max(part.high_water);
            after = part.chunks.last().map(|chunk| chunk.index);
            if part.end || after.is_none() {
                return Ok(counted);
            }
        }
    }
}

/// The epoch of a group of which nobody has said yet that he knows what was lost; that is said by naming no disk.
fn is_known_loss(state: &State, request: &ForcePgRequest) -> Option<u64> {
    let pg = state.pg(PgId(request.pg)).filter(|pg| !pg.retired && pg.older.unconfirmed)?;
    (request.lost_disks.is_empty() && request.confirmed).then(|| pg.epoch.get())
}

fn open_case(state: &State, request: &ForcePgRequest) -> Result<Case, WireError> {
    let id = PgId(request.pg);
    let pg = state.pg(id).filter(|pg| !pg.retired);
    let pg = pg.ok_or_else(|| refused(format!("there is no {id}; `cairn admin pg ls` shows those that exist")))?;
    let lost: Vec<DiskId> = request.lost_disks.iter().copied().map(DiskId).collect();
    let waiting: Vec<DiskId> = pg.members.iter().filter(|m| m.state == MemberState::Waiting).map(|m| m.disk).collect();
    if waiting.is_empty() {
        return Err(refused(format!("{id} waits for no disk; nothing has to be given up")));
    }
    if lost.is_empty() {
        return Err(refused(format!("name the disks that are destroyed; {id} waits for {}", names(&waiting))));
    }
    // Others of the group may be named beside those that it waits for: nobody is left then who may have something.
    let away: Vec<DiskId> = pg.left_without(&[]).collect();
    let none = !lost.iter().any(|disk| waiting.contains(disk));
    if let Some(disk) = lost.iter().find(|disk| none || !away.contains(disk)) {
        return Err(refused(format!("{id} does not wait for {disk}, but for {}", names(&waiting))));
    }
    if let Some(disk) = lost.iter().find(|disk| state.is_able(**disk)) {
        return Err(refused(format!("{disk} is in service: it is not lost, and nothing is given up")));
    }
    let candidates = pg.stand_ins(&lost).filter(|disk| state.is_able(*disk)).filter_map(|disk| {
        let node = state.disk(disk).and_then(|d| state.node(d.node))?;
        Some((disk, node.address.clone()))
    });
    let missing = pg.missing_without(&lost);
    // Whoever is still waited for has everything.
    let candidates = candidates.take(if missing == 0 { 0 } else { usize::MAX }).collect();
    Ok(Case { missing, candidates, lost, pg: pg.clone() })
}

/// Why nothing is given up while somebody may have something.
fn too_few(case: &Case, answer: usize, left: &[DiskId]) -> String {
    let (id, lost, more) = (case.pg.id, names(&case.lost), names(left));
    let named: Vec<String> = case.lost.iter().chain(left).map(|disk| format!("--lost {disk}")).collect();
    format!(
        "{id} cannot go on without {lost}: {} of its other members have to serve, and only {answer} answer; start the nodes of {more} \
         first; only if these are destroyed, too, name them as well, and the group goes on empty: `cairn admin pg force {} {}`",
        case.missing,
        id.get(),
        named.join(" ")
    )
}

fn meaning(case: &Case, found: &[ForceCandidate], fresh: &[(DiskId, DiskId)]) -> String {
    let lost = names(&case.lost);
    if !fresh.is_empty() {
        let new: Vec<DiskId> = fresh.iter().map(|(_, new)| *new).collect();
        return format!(
            "no copy is left: all that {} holds, on {lost}, is given up for good. The group goes on empty on {}. Reads of what is \
             lost fail, they never give zeros; the names stay. `cairn admin fsck` names the files; restore them from elsewhere, or \
             remove them. If {lost} comes back later, it deletes what it has of the group",
            case.pg.id,
            names(&new)
        );
    }
    if case.missing == 0 {
        return format!(
            "nothing is lost: {lost} is not waited for any more, and enough members serve, or are still waited for, that \
             hold everything"
        );
    }
    let stand_ins = found.iter().take(case.missing);
    let stand_ins = stand_ins.map(|c| format!("d{} ({} chunks, {} bytes)", c.disk, c.chunks, c.bytes));
    let stand_ins: Vec<String> = stand_ins.collect();
    format!(
        "the last complete copies, on {lost}, are given up for good. {} serves as it is, others copy from it. Everything \
         that was acknowledged while it was away is lost: reads of it fail, they never give zeros; the names stay. Read \
         the volume once (`cairn fs get -r`) to see which files. If {lost} comes back later, it copies from the others",
        stand_ins.join(", ")
    )
}

fn names(disks: &[DiskId]) -> String {
    disks.iter().map(DiskId::to_string).collect::<Vec<_>>().join(", ")
}

fn refused(text: String) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, text)
}
