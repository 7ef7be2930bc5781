//! The part of a check that needs other partitions: names of one for inodes of another, links in sum, circles of
//! directories, locks that stay. Each partition's leader checks the inodes of its own; of the others it asks what they
//! name of these (`CheckPart`).
//!
//! What does not seem to fit is looked at again until it is certain (meta-core: `review`), so a volume in use gives no
//! false findings. Bounds: lists of names (`foreign_names`), [`SUSPECTS_MAX`] suspects, [`LOOKS_MAX`] looks. A
//! partition that does not answer leaves this part out, which the answer says. Not here: the rules (meta-core).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_meta_core::{
    Finding, Fsck, FsckReport, Look, MEND_ALL_LEVEL, MEND_ELSEWHERE_LEVEL, Mend, NameScan, Names, NamespaceSnapshot,
    PathFinder, Review, SUSPECTS_MAX, Suspicion, found_name, mend_elsewhere, mend_found, mend_item, mend_name,
    mend_place,
};
use cairn_rpc::Reply;
use cairn_types::{ErrorCode, InodeId, PartitionId, Time};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{CheckPartRequest, CheckPartResponse, FoundInode, MendItem, NamesOf, StrayName, WayOut, WayUp};
use tokio::time::sleep;

use super::foreign_names::{self, KEPT, LISTED_WITH_NAME};
use super::{Checker, PART_INODES, STEP};
use crate::across::header;
use crate::partition::Partition;

/// Directories of one request that are gone up from.
const WAYS: usize = 4096;
/// The same with the names on the way.
const WAYS_WITH_NAMES: usize = 4;
/// Names of one request that are removed.
const STRAYS: usize = 256;
/// Looks at suspects; what is not certain then is left to the next check.
const LOOKS_MAX: usize = 12;
/// A way that goes from partition to partition more often is not followed to its end.
const CROSSINGS_MAX: usize = 1024;
/// Looks that have to see the same circle.
const CIRCLE_LOOKS: usize = 3;
/// Findings whose paths go over into other partitions: of more the inode alone is told.
pub(super) const PATHS_MAX: usize = 256;
/// A partition is walked through with rests, and may have many millions of files.
const DEADLINE: Duration = Duration::from_secs(1800);

/// What was found with the others.
#[derive(Default)]
pub(super) struct Elsewhere {
    pub(super) findings: Vec<Suspicion>,
    /// What was not looked at, and why.
    pub(super) message: String,
}

impl Checker {
    /// The check of the names: those of this partition by themselves, then with the others.
    pub(super) async fn check_names(
        &self,
        term: u64,
        snapshot: &NamespaceSnapshot,
        asked: bool,
    ) -> Result<(FsckReport, Elsewhere), WireError> {
        let began = self.partition.state.common.clock.now();
        let least_age = if asked { Duration::ZERO } else { KEPT };
        let (mut elsewhere, mut others) = (Elsewhere::default(), Vec::new());
        let several = self.partition.state.across.is_one_of_several();
        if several {
            match self.others().await {
                Ok(found) => others = found,
                Err(error) => elsewhere.message = unasked(&error),
            }
        }
        let with_others = several && elsewhere.message.is_empty();
        let mut fsck = if with_others { Fsck::with_others(PART_INODES) } else { Fsck::new(PART_INODES) };
        let mut circles = BTreeSet::new();
        let mut more = true;
        while more {
            let step = || {
                more = fsck.step(snapshot, STEP);
                more && fsck.wants_names(snapshot).is_none() && fsck.exits() < WAYS
            };
            self.walk(term, step).await?;
            if let Some((first, last)) = fsck.wants_names(snapshot) {
                let told = self.add_names(&mut fsck, &others, (first, last), (began, least_age)).await;
                fsck.names_are_told(snapshot, told.is_ok());
                if let Err(error) = told {
                    elsewhere.message = unasked(&error);
                }
            }
            circles.extend(self.circles(snapshot, fsck.take_exits()).await.unwrap_or_else(|error| {
                elsewhere.message = unasked(&error);
                BTreeSet::new()
            }));
        }
        let suspects = fsck.take_suspects();
        let report = fsck.into_report();
        if elsewhere.message.is_empty()
            && let Err(error) = self.look_again(term, suspects, circles, &mut elsewhere).await
        {
            elsewhere.message = unasked(&error);
        }
        elsewhere.findings.extend(self.old_locks().await);
        Ok((report, elsewhere))
    }

    async fn others(&self) -> Result<Vec<PartitionId>, WireError> {
        let state = &self.partition.state;
        // What is made after this has names only of what is changed after this.
        state.common.fresh_map(self.timings.map_rounds).await?;
        let mut others = self.peers.partitions(state.volume);
        others.retain(|other| *other != state.id);
        others.sort_unstable();
        others.dedup();
        Ok(others)
    }

    async fn ask(&self, other: PartitionId, request: CheckPartRequest) -> Result<CheckPartResponse, WireError> {
        let request = CheckPartRequest { header: Some(header(&self.partition, other)), ..request };
        let answer = self.peers.call_long(other, Opcode::CheckPart, &request, DEADLINE).await;
        answer.map_err(|error| WireError::new(error.code, format!("{other} does not answer: {}", error.message)))
    }

    /// Adds what the others name of the inodes of a part: as of a moment after the check began, or by so much before
    /// now.
    async fn add_names(
        &self,
        fsck: &mut Fsck,
        others: &[PartitionId],
        (first, last): (u64, u64),
        (began, least_age): (Time, Duration),
    ) -> Result<(), WireError> {
        let clock = &self.partition.state.common.clock;
        // Those of which something is not told yet, and from which inode on.
        let mut left: BTreeMap<PartitionId, u64> = others.iter().map(|other| (*other, first)).collect();
        while let Some((other, from)) = left.pop_first() {
            let beside = from == first;
            let age = clock.now().since(began).max(least_age);
            let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            let request = CheckPartRequest { first: from, last, beside, age_ms, ..CheckPartRequest::default() };
            let mut answer = self.ask(other, request).await?;
            let beside = std::mem::take(&mut answer.beside);
            let mut told = vec![(other, from, answer)];
            for answer in beside {
                let id = PartitionId(answer.partition);
                if left.get(&id) == Some(&first) {
                    left.remove(&id);
                    told.push((id, first, answer));
                }
            }
            for (other, from, answer) in told {
                fsck.add_names(answer.names.into_iter().map(from_wire));
                if answer.last < last {
                    if answer.last < from {
                        let text = format!("{other} lists names and does not go on");
                        return Err(WireError::new(ErrorCode::Internal, text));
                    }
                    left.insert(other, answer.last + 1);
                }
            }
        }
        Ok(())
    }

    async fn look_again(
        &self,
        term: u64,
        suspects: BTreeSet<u64>,
        circles: BTreeSet<u64>,
        elsewhere: &mut Elsewhere,
    ) -> Result<(), WireError> {
        let state = &self.partition.state;
        self.note(|run| run.stage = "names, once more".into());
        for directory in circles {
            if self.is_in_circle(directory).await? {
                let text = "is in a circle of directories of several partitions; nothing leads to them".to_owned();
                let finding = Finding { inode: directory, text, mend: None };
                elsewhere.findings.push(Suspicion { finding, place: None });
            }
        }
        let mut review = Review::new(suspects);
        if review.has_left_out() {
            elsewhere.message = format!(
                "of more than {SUSPECTS_MAX} inodes whose names do not seem to fit the first were looked at; check again"
            );
        }
        for _ in 0..LOOKS_MAX {
            let open = review.open();
            if open.is_empty() {
                break;
            }
            self.check_leads(term)?;
            let snapshot = state.namespace.read().snapshot();
            let mut look = Look::new(&snapshot, &open);
            let mut scan = NameScan::of(&snapshot, open.iter().copied());
            self.walk(term, || scan.step(&snapshot, STEP)).await?;
            let (names, _, locks) = scan.into_parts();
            look.add(state.id.get(), names, locks);
            let others: BTreeSet<PartitionId> = self.others().await?.into_iter().collect();
            for part in open.chunks(LISTED_WITH_NAME) {
                let mut left = others.clone();
                while let Some(other) = left.pop_first() {
                    let request = CheckPartRequest { only: part.to_vec(), beside: true, ..CheckPartRequest::default() };
                    let mut answer = self.ask(other, request).await?;
                    let beside = std::mem::take(&mut answer.beside);
                    look.add(other.get(), answer.names.into_iter().map(from_wire), answer.locks);
                    for answer in beside {
                        if left.remove(&PartitionId(answer.partition)) {
                            look.add(answer.partition, answer.names.into_iter().map(from_wire), answer.locks);
                        }
                    }
                }
            }
            review.conclude(look);
            sleep(self.timings.look_pause).await;
        }
        let gets_names = {
            let namespace = state.namespace.read();
            namespace.is_home() || namespace.feature_level() >= MEND_ELSEWHERE_LEVEL
        };
        elsewhere.findings.extend(review.into_suspicions(gets_names));
        Ok(())
    }

    /// Directories of this partition from which the way goes round in a circle over others. `exits`: where it leaves
    /// this one.
    async fn circles(&self, snapshot: &NamespaceSnapshot, exits: BTreeSet<u64>) -> Result<BTreeSet<u64>, WireError> {
        let mut next: BTreeMap<u64, u64> = BTreeMap::new();
        let mut open: BTreeSet<u64> = exits.clone();
        for _ in 0..CROSSINGS_MAX {
            if open.is_empty() {
                break;
            }
            let found = self.above(snapshot, &open).await?;
            open = found.values().copied().filter(|above| *above != 0 && !next.contains_key(above)).collect();
            open.retain(|above| !found.contains_key(above));
            next.extend(found);
        }
        // Of each way it is certain that it goes round if it is longer than all that there is.
        let goes_round = |from: &u64| {
            let (mut at, mut steps) = (*from, 0);
            while let Some(above) = next.get(&at).filter(|above| **above != 0) {
                (at, steps) = (*above, steps + 1);
                if at == *from || steps > next.len() {
                    return at == *from;
                }
            }
            false
        };
        // Where the circle comes back to this partition: of the others their own check tells.
        let own = |directory: &u64| snapshot.has(*directory);
        Ok(next.keys().copied().filter(|at| own(at) && goes_round(at)).collect())
    }

    /// Where the ways from these directories leave the partitions that have them; 0: not at all.
    async fn above(
        &self,
        snapshot: &NamespaceSnapshot,
        directories: &BTreeSet<u64>,
    ) -> Result<BTreeMap<u64, u64>, WireError> {
        let state = &self.partition.state;
        let (mut found, mut by_owner) = (BTreeMap::new(), BTreeMap::<PartitionId, Vec<u64>>::new());
        for directory in directories {
            match self.peers.owner(state.volume, *directory) {
                Ok(owner) if owner == state.id => {
                    found.insert(*directory, snapshot.way_up(*directory, 0, false).above);
                }
                Ok(owner) => by_owner.entry(owner).or_default().push(*directory),
                // A number that no partition has: its name is a finding by itself.
                Err(_) => drop(found.insert(*directory, 0)),
            }
        }
        for (owner, directories) in by_owner {
            for part in directories.chunks(WAYS) {
                let ways =
                    part.iter().map(|directory| WayOut { directory: *directory, child: 0, names: false }).collect();
                let answer = self.ask(owner, CheckPartRequest { ways, ..CheckPartRequest::default() }).await?;
                found.extend(part.iter().zip(&answer.ways).map(|(directory, way)| (*directory, way.above)));
            }
        }
        Ok(found)
    }

    /// Whether the way up from a directory comes back to it, the same way each time.
    async fn is_in_circle(&self, directory: u64) -> Result<bool, WireError> {
        let mut before: Option<Vec<u64>> = None;
        for _ in 0..CIRCLE_LOOKS {
            let snapshot = self.partition.state.namespace.read().snapshot();
            let (mut way, mut at) = (Vec::new(), directory);
            loop {
                let found = self.above(&snapshot, &BTreeSet::from([at])).await?;
                at = found.get(&at).copied().unwrap_or(0);
                way.push(at);
                if at == 0 || way.len() > CROSSINGS_MAX {
                    return Ok(false);
                }
                if at == directory {
                    break;
                }
            }
            if before.replace(way.clone()).is_some_and(|before| before != way) {
                return Ok(false);
            }
            sleep(self.timings.look_pause).await;
        }
        Ok(true)
    }

    /// What operations have locked for so long that something keeps them from ending.
    async fn old_locks(&self) -> Vec<Suspicion> {
        let state = &self.partition.state;
        let old = || {
            let now = state.common.clock.wall().0;
            let limit = self.timings.old_lock.as_nanos() as u64;
            let locks = state.namespace.read().tx_locks(1000);
            locks.into_iter().filter(|(_, lock)| now.saturating_sub(lock.since) > limit).collect::<Vec<_>>()
        };
        let mut found = old();
        if !found.is_empty() {
            // The clock may have been set forward, or it was about to end.
            sleep(self.timings.look_pause).await;
            let still: BTreeSet<u64> = old().iter().map(|(_, lock)| lock.number).collect();
            found.retain(|(_, lock)| still.contains(&lock.number));
        }
        let finding = |(tx, lock): (cairn_meta_core::TxId, cairn_meta_core::TxLock)| {
            let age = Duration::from_nanos(state.common.clock.wall().0.saturating_sub(lock.since));
            let text = format!(
                "an operation that p{} decides has had it and {} others locked for {} s, and nobody can use it: it ends as soon as p{} \
                 has a leader and is reached; see cairn admin partition ls",
                tx.partition,
                lock.all().count().saturating_sub(1),
                age.as_secs(),
                tx.partition
            );
            let inode = lock.all().find(|id| *id != 0).unwrap_or(0);
            Suspicion { finding: Finding { inode, text, mend: None }, place: None }
        };
        found.into_iter().map(finding).collect()
    }

    /// Mends what was found with others, and can be. Answers the inodes of which that was done.
    pub(super) async fn mend_elsewhere(&self, elsewhere: &Elsewhere) -> Result<BTreeSet<u64>, WireError> {
        let state = &self.partition.state;
        let (mut items, mut done) = (Vec::new(), BTreeSet::new());
        let mut strays: BTreeMap<PartitionId, Vec<StrayName>> = BTreeMap::new();
        let mut found = Vec::new();
        let (all, is_home) = {
            let namespace = state.namespace.read();
            (namespace.feature_level() >= MEND_ALL_LEVEL, namespace.is_home())
        };
        for Suspicion { finding, place } in &elsewhere.findings {
            let inode = finding.inode;
            match (finding.mend, place) {
                (Some(Mend::Name), Some((directory, name))) => {
                    let stray = StrayName { directory: *directory, name: name.clone(), inode };
                    strays.entry(self.peers.owner(state.volume, *directory)?).or_default().push(stray);
                }
                (Some(Mend::AdoptUnchanged { .. }), _) if !all => {}
                (Some(Mend::AdoptUnchanged { generation }), _) if !is_home => found.push((inode, generation)),
                (Some(mend), _) if mend != Mend::Name => {
                    let (kind, inode, numbers) = mend_item(inode, mend);
                    items.push(MendItem { kind, inode, numbers, name: Vec::new() });
                    done.insert(inode);
                }
                _ => {}
            }
        }
        self.mend_items(items).await?;
        match self.give_names(&found).await {
            Ok(named) => done.extend(named),
            Err(error) => {
                tracing::warn!(partition = %state.id, %error, "what has no name got none in lost+found; repair again");
            }
        }
        for (owner, strays) in strays {
            for part in strays.chunks(STRAYS) {
                let outcome = match owner == state.id {
                    true => remove_strays(&self.partition, part).await,
                    false => {
                        let request = CheckPartRequest { strays: part.to_vec(), ..CheckPartRequest::default() };
                        self.ask(owner, request).await.map(|_| ())
                    }
                };
                match outcome {
                    Ok(()) => done.extend(part.iter().map(|stray| stray.inode)),
                    Err(error) => {
                        tracing::warn!(partition = %state.id, %owner, %error, "names of what is not there stay; repair again");
                    }
                }
            }
        }
        Ok(done)
    }

    /// Names in `lost+found` of the partition of the root, for inodes of this one that were as they were; those that
    /// have got one.
    async fn give_names(&self, found: &[(u64, u64)]) -> Result<Vec<u64>, WireError> {
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let state = &self.partition.state;
        let root = self.peers.owner(state.volume, InodeId::ROOT.0)?;
        let request = CheckPartRequest { lost_and_found: true, ..CheckPartRequest::default() };
        let place = self.ask(root, request).await?.lost_and_found;
        if place == 0 {
            let text = format!(
                "{root} has no directory /lost+found of its own, or its build makes none for others: rename what has that name, \
                 upgrade all meta nodes"
            );
            return Err(WireError::new(ErrorCode::Conflict, text));
        }
        let item = |(inode, generation): &(u64, u64)| {
            let (kind, inode, numbers) = mend_elsewhere(*inode, *generation, place);
            MendItem { kind, inode, numbers, name: Vec::new() }
        };
        self.mend_items(found.iter().map(item).collect()).await?;
        let ready: Vec<FoundInode> = {
            let namespace = state.namespace.read();
            let is_ready = |(inode, _): &(u64, u64)| Some((*inode, namespace.is_ready_for(*inode, place)?));
            let ready = found.iter().filter_map(is_ready);
            ready.map(|(inode, d_type)| FoundInode { inode, d_type }).collect()
        };
        for part in ready.chunks(STRAYS) {
            let request =
                CheckPartRequest { lost_and_found: true, found: part.to_vec(), ..CheckPartRequest::default() };
            self.ask(root, request).await?;
        }
        Ok(ready.into_iter().map(|found| found.inode).collect())
    }

    /// The path of an inode, wherever its directories are. `left`: how many more may be asked for elsewhere.
    pub(super) async fn path(
        &self,
        snapshot: &NamespaceSnapshot,
        paths: &PathFinder,
        inode: u64,
        left: &mut usize,
    ) -> Vec<u8> {
        match (paths.path(snapshot, inode), paths.place(inode)) {
            (Some(path), _) => path,
            (None, Some((directory, name))) => self.path_up(snapshot, *directory, vec![name.clone()], left).await,
            // A directory knows where its name is.
            (None, None) => self.path_up(snapshot, inode, Vec::new(), left).await,
        }
    }

    /// The path of a directory, wherever it is, with the names below it. Empty: it is not known.
    pub(super) async fn path_up(
        &self,
        snapshot: &NamespaceSnapshot,
        directory: u64,
        mut names: Vec<Vec<u8>>,
        left: &mut usize,
    ) -> Vec<u8> {
        let state = &self.partition.state;
        if directory == 0 || !state.across.is_one_of_several() {
            return Vec::new();
        }
        let (mut at, mut child) = (directory, 0);
        for _ in 0..CROSSINGS_MAX {
            let Ok(owner) = self.peers.owner(state.volume, at) else { return Vec::new() };
            let way = if owner == state.id {
                to_wire(snapshot.way_up(at, child, true))
            } else {
                let Some(fewer) = left.checked_sub(1) else { return Vec::new() };
                *left = fewer;
                let ways = vec![WayOut { directory: at, child, names: true }];
                let asked = self.ask(owner, CheckPartRequest { ways, ..CheckPartRequest::default() }).await;
                asked.ok().and_then(|mut answer| answer.ways.pop()).unwrap_or_default()
            };
            if !way.known {
                return Vec::new();
            }
            names.extend(way.names);
            if way.above == 0 {
                break;
            }
            (at, child) = (way.above, way.top);
            if at == directory {
                return Vec::new();
            }
        }
        names.iter().rev().flat_map(|name| [b"/", name.as_slice()]).collect::<Vec<_>>().concat()
    }
}

fn unasked(error: &WireError) -> String {
    format!(
        "names and links between partitions were not checked: {}; check again when all partitions have a leader",
        error.message
    )
}

fn from_wire(names: NamesOf) -> (u64, Names) {
    let NamesOf { inode, count, directory, types, open, name } = names;
    (inode, Names { count, directory, name, types, open })
}

fn to_wire(way: cairn_meta_core::WayUp) -> WayUp {
    WayUp { above: way.above, top: way.top, names: way.names, known: way.known }
}

/// Answers what the check of another partition asks of this one.
pub(crate) async fn answer(
    partition: Arc<Partition>,
    request: CheckPartRequest,
    beside: Vec<Arc<Partition>>,
    reply: Reply,
) {
    match answered(&partition, request, &beside).await {
        Ok(answer) => reply.ok(&answer, ()),
        Err(error) => reply.err(error),
    }
}

/// `beside`: other partitions of the volume that this node leads.
async fn answered(
    partition: &Arc<Partition>,
    request: CheckPartRequest,
    beside: &[Arc<Partition>],
) -> Result<CheckPartResponse, WireError> {
    let state = &partition.state;
    let arrived = state.common.clock.now();
    let mut turn = state.fsck.turn.lock().await;
    // It may have waited for long: what a member has that does not lead any more is none of now.
    partition.handle.read_permit().map_err(|not_leader| state.common.not_leader(not_leader.hint))?;
    let with_names = request.ways.iter().any(|way| way.names);
    let ways_max = if with_names { WAYS_WITH_NAMES } else { WAYS };
    if request.only.len() > LISTED_WITH_NAME
        || request.ways.len() > ways_max
        || request.strays.len().max(request.found.len()) > STRAYS
    {
        return Err(WireError::new(ErrorCode::BadRequest, "a check asks for too much at once"));
    }
    remove_strays(partition, &request.strays).await?;
    let lost_and_found = if request.lost_and_found { name_found(partition, &request.found).await? } else { 0 };
    let snapshot = state.namespace.read().snapshot();
    let ways = request.ways.iter().map(|way| to_wire(snapshot.way_up(way.directory, way.child, way.names))).collect();
    let mut answer = CheckPartResponse { ways, last: request.last, lost_and_found, ..CheckPartResponse::default() };
    drop(snapshot);
    if request.only.is_empty() && request.last == 0 {
        return Ok(answer);
    }
    foreign_names::list(partition, &request, arrived, &mut turn, &mut answer).await?;
    drop(turn);
    if request.beside {
        foreign_names::list_beside(beside, &request, arrived, &mut answer).await;
    }
    Ok(answer)
}

/// Removes names of inodes of which the partition that would have them has said that they are not there.
async fn remove_strays(partition: &Partition, strays: &[StrayName]) -> Result<(), WireError> {
    if strays.is_empty() {
        return Ok(());
    }
    let level = partition.state.namespace.read().feature_level();
    if level < MEND_ALL_LEVEL {
        let text = format!("names are removed at feature level {MEND_ALL_LEVEL}; {} has {level}", partition.state.id);
        return Err(WireError::new(ErrorCode::UnknownOperation, text));
    }
    let item = |stray: &StrayName| {
        let (kind, inode, numbers) = mend_name(stray.directory, stray.inode);
        MendItem { kind, inode, numbers, name: stray.name.clone() }
    };
    let request = cairn_wire::meta::MendNamespace { items: strays.iter().map(item).collect() };
    partition.propose_own(Opcode::MendNamespace, &request).await?;
    tracing::warn!(partition = %partition.state.id, names = strays.len(), "names of what is not there were removed");
    Ok(())
}

/// At the partition of the root: `lost+found` is there, with these names. Answers its inode; 0: it cannot be.
async fn name_found(partition: &Partition, found: &[FoundInode]) -> Result<u64, WireError> {
    if let Some(error) = partition.lacks_level("a name for what another partition has", MEND_ELSEWHERE_LEVEL) {
        return Err(error);
    }
    let item = |(kind, inode, numbers): (u32, u64, Vec<i64>), name: Vec<u8>| MendItem { kind, inode, numbers, name };
    let mut items = vec![item(mend_place(), Vec::new())];
    let place = || partition.state.namespace.read().lost_and_found_place();
    if let Some(place) = place() {
        let names = found.iter().map(|one| item(mend_found(place, one.inode, one.d_type), found_name(one.inode)));
        items.extend(names);
    }
    let request = cairn_wire::meta::MendNamespace { items };
    partition.propose_own(Opcode::MendNamespace, &request).await?;
    Ok(place().unwrap_or(0))
}
