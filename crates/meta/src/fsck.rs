//! The check of a volume: its names, links, totals and quotas, and for each extent the chunk with the redundancy of its
//! group, as the members list it. Asked for by an operator (`Fsck`), and once in `check_period` by itself; done by the
//! leader beside its other work.
//!
//! One version of the namespace is checked, taken before any list is asked for: so what it names and nobody has was
//! lost, or freed since, which the present version tells. Memory: [`PART_BYTES`] of lists, a part of the inodes, and a
//! bounded number of findings. Not here: the rules (meta-core: `fsck`, `presence`), mending (meta-core: `mend`).

mod elsewhere;
mod foreign_names;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cairn_meta_core::{
    Copy, Finding, Mend, Named, NamedScan, NamespaceSnapshot, PathFinder, Presence, Shortage, Suspicion, mend_item,
};
use cairn_rpc::{Call, CallOptions, Client};
use cairn_types::{BLOCK_SIZE, ErrorCode, PgId, Scheme};
use cairn_wire::Opcode;
use cairn_wire::data::{BadBlocksRequest, BadBlocksResponse};
use cairn_wire::error::WireError;
use cairn_wire::meta::{FsckFinding, FsckRequest, FsckResponse, MendItem, MendNamespace};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::across::Peers;
use crate::chunk_lists::GroupLists;
use crate::config::MetaTimings;
use crate::name_lost::LostChunks;
use crate::partition::Partition;
pub(crate) use elsewhere::answer;
use foreign_names::ForeignNames;

/// Lists of chunks held at a time.
const PART_BYTES: usize = 64 << 20;
/// Inodes whose names are counted together.
const PART_INODES: usize = 1 << 20;
/// Entries of the namespace looked at in one step.
const STEP: usize = 2048;
/// After a step it rests as long as the step took, so many times.
const REST: u32 = 1;
/// Files whose extents are short that are named; more are counted.
const SHORT_MAX: usize = 10_000;
/// Files that lost bytes and are named in the log by one check.
const TOLD_MAX: usize = 20;
/// Findings of one answer.
const FINDINGS_PAGE: usize = 500;

/// Nodes that are asked for their bad blocks at the same time.
const NODES_AT_ONCE: usize = 64;

const RUNNING: u32 = 1;
const DONE: u32 = 2;
const FAILED: u32 = 3;

const NAMES: u32 = 1;
const DEGRADED: u32 = 2;
const LOST: u32 = 3;
/// It is not known whether it is lost: too few of those that may have it are there.
const UNAVAILABLE: u32 = 4;
/// Nothing is wrong, and it is no finding that is counted.
const NOTE: u32 = 5;
const UNFINISHED: &str = "by its name a clone is being built here, or its builder was killed: repeat that clone; if none is under way, look into the directory, and remove it if it is nobody's (cairn fs rm -r)";

/// The last check of a partition.
#[derive(Default)]
pub(crate) struct FsckDesk {
    run: Mutex<Run>,
    wake: Notify,
    /// Checks of other partitions are answered one after the other, from this list while it is fresh.
    turn: tokio::sync::Mutex<Option<ForeignNames>>,
}

#[derive(Default, Clone)]
struct Run {
    id: u64,
    repair: bool,
    state: u32,
    stage: String,
    /// Entries of the namespace and chunks looked at.
    steps: u64,
    inodes: u64,
    directories: u64,
    chunks: u64,
    found: u64,
    findings: Vec<FsckFinding>,
    message: String,
}

impl FsckDesk {
    /// Starts a check, or tells of the last one.
    pub(crate) fn ask(&self, request: &FsckRequest) -> Result<FsckResponse, WireError> {
        let mut run = self.run.lock();
        if request.start && run.state != RUNNING {
            *run = Run { id: run.id + 1, repair: request.repair, state: RUNNING, ..Run::default() };
            self.wake.notify_one();
        }
        // Who joins a check that is under way still gets mended what it finds.
        run.repair |= request.start && request.repair;
        if run.id == 0 || request.run != 0 && request.run != run.id {
            let text = "the check is not known to this leader; another member led when it began; start it again";
            return Err(WireError::new(ErrorCode::NotFound, text));
        }
        let from = (request.findings_from as usize).min(run.findings.len());
        let to = (from + FINDINGS_PAGE).min(run.findings.len());
        Ok(FsckResponse {
            run: run.id,
            state: run.state,
            stage: run.stage.clone(),
            steps: run.steps,
            inodes: run.inodes,
            directories: run.directories,
            chunks: run.chunks,
            found: run.found,
            findings: run.findings[from..to].to_vec(),
            more: to < run.findings.len(),
            message: run.message.clone(),
        })
    }

    /// Begins a check of the leader's own; false when one is under way.
    fn begin(&self) -> bool {
        let mut run = self.run.lock();
        if run.state == RUNNING {
            return false;
        }
        *run = Run { id: run.id + 1, state: RUNNING, ..Run::default() };
        true
    }

    /// This member leads no more, or only now: what an earlier leader checked is not known.
    pub(crate) fn reset(&self) {
        let mut run = self.run.lock();
        *run = Run { id: run.id, ..Run::default() };
        run.id += u64::from(run.id > 0);
    }
}

/// Carries checks out.
pub(crate) struct Checker {
    partition: Arc<Partition>,
    client: Client,
    peers: Arc<Peers>,
    timings: MetaTimings,
}

/// Bad blocks of chunks, by disk.
type BadBlocks = BTreeMap<(u32, u32), Vec<(u32, Vec<u32>)>>;

/// What is short of one file in one group.
struct Short {
    worst: Shortage,
    index: u32,
    extents: u64,
}

impl Short {
    fn severity(&self) -> u32 {
        match self.worst {
            Shortage { lost: true, .. } => LOST,
            Shortage { present, needed, .. } if present < needed => UNAVAILABLE,
            _ => DEGRADED,
        }
    }
}

/// What the check of the chunks found.
#[derive(Default)]
struct Shorts {
    /// By file and group.
    files: BTreeMap<(u64, u32), Short>,
    lost: LostChunks,
    /// Members of groups that did not tell what they have, or do not serve.
    away: BTreeMap<u32, String>,
}

impl Checker {
    pub(crate) fn new(partition: Arc<Partition>, client: Client, peers: Arc<Peers>, timings: MetaTimings) -> Self {
        Self { partition, client, peers, timings }
    }

    fn desk(&self) -> &FsckDesk {
        &self.partition.state.fsck
    }

    /// Makes checks until the task is ended.
    pub(crate) async fn run(self) {
        loop {
            let asked = timeout(self.timings.check_period, self.desk().wake.notified()).await.is_ok();
            let leads = self.partition.state.leading_term().is_some();
            if !(asked || leads && self.desk().begin()) {
                continue;
            }
            let outcome = self.check(asked).await;
            let mut run = self.desk().run.lock();
            match outcome {
                Ok(()) => {
                    run.state = DONE;
                    self.tell(&run, asked);
                }
                Err(error) => {
                    run.state = FAILED;
                    run.message = error.to_string();
                }
            }
        }
    }

    /// What nobody asked for is told in the log; files that lost bytes are counted.
    fn tell(&self, run: &Run, asked: bool) {
        let state = &self.partition.state;
        let lost = run.findings.iter().filter(|finding| finding.severity == LOST);
        // A file may lack bytes in several groups.
        let files: BTreeSet<u64> = lost.clone().map(|finding| finding.inode).collect();
        state.common.stats.lost_files.store(files.len() as u64, Relaxed);
        if asked {
            return;
        }
        for FsckFinding { path, inode, text, .. } in lost.take(TOLD_MAX) {
            let path = String::from_utf8_lossy(path);
            tracing::error!(partition = %state.id, inode, %path, text, "a file has lost bytes; restore it from elsewhere");
        }
        let wrong = run.findings.iter().filter(|finding| finding.severity == NAMES).count();
        if wrong > 0 {
            tracing::error!(partition = %state.id, wrong, "the namespace is damaged; see cairn admin fsck");
        }
    }

    fn note(&self, change: impl FnOnce(&mut Run)) {
        change(&mut self.desk().run.lock());
    }

    async fn check(&self, asked: bool) -> Result<(), WireError> {
        let state = &self.partition.state;
        let term = state.leading_term().ok_or_else(not_leading)?;
        let snapshot = state.namespace.read().snapshot();
        self.note(|run| run.stage = "names".into());
        let (report, elsewhere) = self.check_names(term, &snapshot, asked).await?;
        self.note(|run| {
            run.stage = "chunks".into();
            (run.inodes, run.directories) = (report.inodes, report.directories);
            run.found = report.found + elsewhere.findings.len() as u64;
            run.message.clone_from(&elsewhere.message);
        });
        let Shorts { files: short, lost, away } = self.check_chunks(term, &snapshot).await?;
        lost.tell(&self.client, &state.common.map, self.timings.list_deadline).await;
        self.note(|run| run.stage = "paths".into());
        let inodes = report.findings.iter().map(|finding| finding.inode);
        let inodes = inodes.chain(short.keys().map(|(inode, _)| *inode)).chain(report.unfinished.iter().copied());
        let mut paths = PathFinder::new(inodes);
        self.walk(term, || paths.step(&snapshot, STEP)).await?;
        let repair = self.desk().run.lock().repair;
        let mended = repair && self.mend(&report.findings).await?;
        let mended_elsewhere = if repair { self.mend_elsewhere(&elsewhere).await? } else { BTreeSet::new() };
        let mut findings: Vec<FsckFinding> = Vec::new();
        let mut remote = elsewhere::PATHS_MAX;
        for ((inode, pg), short) in short {
            let severity = short.severity();
            let text = describe(pg, &short, away.get(&pg).map_or("", String::as_str));
            let path = self.path(&snapshot, &paths, inode, &mut remote).await;
            findings.push(FsckFinding { inode, path, text, severity, mended: false });
        }
        for Finding { inode, text, mend } in report.findings {
            let mended = mended && mend.is_some();
            let path = self.path(&snapshot, &paths, inode, &mut remote).await;
            findings.push(FsckFinding { inode, path, text, severity: NAMES, mended });
        }
        for Suspicion { finding: Finding { inode, text, .. }, place } in elsewhere.findings {
            let mended = mended_elsewhere.contains(&inode);
            let (directory, below) = place.map_or((inode, Vec::new()), |(directory, name)| (directory, vec![name]));
            let path = self.path_up(&snapshot, directory, below, &mut remote).await;
            findings.push(FsckFinding { inode, path, text, severity: NAMES, mended });
        }
        for inode in report.unfinished {
            let path = self.path(&snapshot, &paths, inode, &mut remote).await;
            findings.push(FsckFinding { inode, path, text: UNFINISHED.into(), severity: NOTE, mended: false });
        }
        findings.sort_by_key(|finding| match finding.severity {
            LOST => 0,
            UNAVAILABLE => 1,
            DEGRADED => 2,
            NOTE => 4,
            _ => 3,
        });
        self.note(|run| run.findings = findings);
        Ok(())
    }

    /// Steps until there are no more, with rests, as long as this member leads.
    async fn walk(&self, term: u64, mut step: impl FnMut() -> bool) -> Result<(), WireError> {
        let clock = &self.partition.state.common.clock;
        loop {
            let start = clock.now();
            let more = step();
            self.note(|run| run.steps += STEP as u64);
            if !more {
                return Ok(());
            }
            sleep(clock.now().since(start) * REST).await;
            self.check_leads(term)?;
        }
    }

    fn check_leads(&self, term: u64) -> Result<(), WireError> {
        if self.partition.state.leading_term() == Some(term) { Ok(()) } else { Err(not_leading()) }
    }

    /// Holds what the version names against what members list, a part of the chunks at a time.
    async fn check_chunks(&self, term: u64, snapshot: &NamespaceSnapshot) -> Result<Shorts, WireError> {
        let mut shorts = Shorts::default();
        let bad = self.bad_blocks().await;
        let mut from = Some((0, 0));
        while let Some(begin) = from {
            let mut lists = Presence::new(begin);
            from = self.fill(term, begin, &bad, &mut lists, &mut shorts.away).await?;
            if let Some(next) = from {
                lists.end_before(next);
            }
            let (mut scan, mut damage) = (NamedScan::new(), None);
            self.walk(term, || {
                let mut judge = |named: &Named| {
                    if let Some(shortage) = lists.check(named) {
                        self.note_short(named, shortage, &mut shorts);
                    }
                };
                scan.step(snapshot, STEP, &mut judge).unwrap_or_else(|violation| {
                    damage = Some(violation);
                    false
                })
            })
            .await?;
            if let Some(violation) = damage {
                let text = format!("{violation}; the walk over extents cannot go on");
                return Err(WireError::new(ErrorCode::Internal, text));
            }
        }
        Ok(shorts)
    }

    fn note_short(&self, named: &Named, worst: Shortage, shorts: &mut Shorts) {
        {
            let namespace = self.partition.state.namespace.read();
            // Changed since, and its bytes freed; or closed before they were durable, which nobody promised for now.
            if !namespace.still_names(named) || namespace.is_volatile(named.inode, named.file_offset) {
                return;
            }
        }
        if worst.lost {
            shorts.lost.note(named.pg, named.index, named.first_block);
        }
        let (key, short) = ((named.inode, named.pg), &mut shorts.files);
        if let Some(known) = short.get_mut(&key) {
            known.extents += 1;
            if (worst.lost, std::cmp::Reverse(worst.present))
                > (known.worst.lost, std::cmp::Reverse(known.worst.present))
            {
                (known.worst, known.index) = (worst, named.index);
            }
            return;
        }
        self.note(|run| run.found += 1);
        if short.len() < SHORT_MAX {
            short.insert(key, Short { worst, index: named.index, extents: 1 });
        }
    }

    /// What data nodes know to be bad and could not heal so far. Who does not answer lists no chunks either.
    async fn bad_blocks(&self) -> BadBlocks {
        let addresses: Vec<String> = {
            let map = self.partition.state.common.map.read();
            let data = map.nodes().filter(|node| node.up && node.roles.iter().any(|role| role == "data"));
            data.filter(|node| !node.address.is_empty()).map(|node| node.address.clone()).collect()
        };
        let mut bad = BadBlocks::new();
        for part in addresses.chunks(NODES_AT_ONCE) {
            let ask = |address: &String| {
                let options = CallOptions::new(self.timings.list_deadline);
                self.client.call(address, Opcode::BadBlocks.code(), &BadBlocksRequest {}, (), options)
            };
            let calls: Vec<Call> = part.iter().map(ask).collect();
            for call in calls {
                match call.await.and_then(|response| response.decode::<BadBlocksResponse>()) {
                    Ok(answer) => answer.chunks.into_iter().for_each(|chunk| {
                        bad.entry((chunk.pg, chunk.index)).or_default().push((chunk.disk, chunk.blocks));
                    }),
                    Err(error) => tracing::debug!(%error, "a node does not tell its bad blocks"),
                }
            }
        }
        bad
    }

    /// Lists chunks from one on, until the part is full. Answers where the next part begins.
    async fn fill(
        &self,
        term: u64,
        from: (u32, u32),
        bad: &BadBlocks,
        lists: &mut Presence,
        away: &mut BTreeMap<u32, String>,
    ) -> Result<Option<(u32, u32)>, WireError> {
        let state = &self.partition.state;
        let pgs: Vec<u32> = {
            let map = state.common.map.read();
            lists.set_newest(map.pg_newest().map_or(0, PgId::get));
            let own = map.pgs().filter(|pg| pg.volume == state.volume.get() && !pg.retired && pg.pg >= from.0);
            own.map(|pg| pg.pg).collect()
        };
        for pg in pgs {
            self.check_leads(term)?;
            let first = if pg == from.0 { from.1 } else { 0 };
            let Some((mut group, needed)) = self.group(pg, first) else { continue };
            lists.add_group(pg, group.len(), needed);
            while let Some(listed) = group.next().await {
                if lists.memory_bytes() > PART_BYTES {
                    lists.set_unknown(pg, group.unknown());
                    return Ok(Some((pg, listed.index)));
                }
                self.note(|run| run.chunks += 1);
                let copies = (0..group.len()).map(|member| match listed.copy(member) {
                    Some(chunk) if group.is_known(member) => {
                        Copy::Blocks(u32::try_from(chunk.length.div_ceil(BLOCK_SIZE as u64)).unwrap_or(u32::MAX))
                    }
                    None if group.is_known(member) => Copy::Absent,
                    _ => Copy::Unknown,
                });
                lists.add(pg, listed.index, copies);
                for (disk, blocks) in bad.get(&(pg, listed.index)).into_iter().flatten() {
                    if let Some(member) = group.member_on(*disk).filter(|member| group.is_known(*member)) {
                        blocks.iter().for_each(|block| lists.add_bad(pg, listed.index, member, *block));
                    }
                }
                for (member, chunk) in &listed.copies {
                    if group.is_known(*member) && chunk.punched_blocks > 0 {
                        freed_runs(chunk).for_each(|(first, end)| lists.add_freed(pg, listed.index, first, end));
                    }
                }
            }
            lists.set_unknown(pg, group.unknown());
            if group.unknown() > 0 {
                let map = state.common.map.read();
                let at = |disk| map.disk(disk).map_or_else(String::new, |known| format!(" on n{}", known.node));
                let disks = group.unknown_disks().map(|disk| format!("{disk}{}", at(disk)));
                away.insert(pg, disks.collect::<Vec<_>>().join(", "));
            }
        }
        Ok(None)
    }

    fn group(&self, pg: u32, first: u32) -> Option<(GroupLists, usize)> {
        let map = self.partition.state.common.map.read();
        let state = map.pg(PgId(pg)).filter(|state| !state.retired)?;
        let scheme = u8::try_from(state.scheme).ok().and_then(Scheme::from_code);
        let needed = scheme.map_or(1, |scheme| scheme.read_minimum());
        // A disk that is to take a member's place is none yet.
        let mut state = state.clone();
        state.members.truncate(scheme.map_or(usize::MAX, |scheme| scheme.members()));
        let lists = GroupLists::new(&state, &map, self.client.clone(), self.timings.list_deadline);
        Some((lists.starting_at(first), needed))
    }

    /// Puts what can be mended into the log. True when there was something.
    async fn mend(&self, findings: &[Finding]) -> Result<bool, WireError> {
        let item = |finding: &Finding| {
            let mend: Mend = finding.mend?;
            let (kind, inode, numbers) = mend_item(finding.inode, mend);
            Some(MendItem { kind, inode, numbers, name: Vec::new() })
        };
        let items: Vec<MendItem> = findings.iter().filter_map(item).collect();
        self.mend_items(items).await
    }

    async fn mend_items(&self, items: Vec<MendItem>) -> Result<bool, WireError> {
        for part in items.chunks(cairn_meta_core::MEND_ITEMS_MAX) {
            let request = MendNamespace { items: part.to_vec() };
            self.partition.propose_own(Opcode::MendNamespace, &request).await?;
        }
        if !items.is_empty() {
            tracing::warn!(partition = %self.partition.state.id, items = items.len(), "the namespace was mended");
        }
        Ok(!items.is_empty())
    }
}

/// Blocks that a listed copy has freed: first, one past the last.
fn freed_runs(chunk: &cairn_wire::data::ChunkSummary) -> impl Iterator<Item = (u32, u32)> {
    let blocks = u32::try_from(chunk.length.div_ceil(BLOCK_SIZE as u64)).unwrap_or(u32::MAX);
    let (used, _) = chunk.used.as_chunks::<2>();
    // All of it may be freed, or it is not known which part: then nothing is said.
    let known = !used.is_empty() || chunk.punched_blocks >= blocks.into();
    let mut at = 0;
    let mut runs = Vec::new();
    for [first, count] in used {
        runs.push((at, *first));
        at = first.saturating_add(*count);
    }
    runs.push((at, blocks));
    runs.into_iter().filter(move |(first, end)| known && first < end)
}

fn describe(pg: u32, short: &Short, away: &str) -> String {
    let Short { worst: Shortage { lost, present, unknown, bad, members, needed }, index, extents } = short;
    let which = if *extents == 1 { "an extent".to_owned() } else { format!("{extents} extents") };
    let (intact, rotten) = match bad {
        0 => ("", String::new()),
        n => (" intact", format!("; a block is bad on {n} members and could not be healed so far")),
    };
    if short.severity() == UNAVAILABLE {
        let who = if away.is_empty() { format!("{unknown} members") } else { away.to_owned() };
        return format!(
            "{which} cannot be read now: {present} of {members} members have chunk {index} of pg{pg}{intact} and answer, {needed} are \
             needed; {who} may have it and are away or catch up{rotten}"
        );
    }
    match (*lost, *members, *unknown) {
        (_, 0, _) => format!("{which} in pg{pg}, a placement group that is not there: its bytes are lost"),
        (true, ..) => {
            format!(
                "{which} cannot be read: {present} of {members} members have chunk {index} of pg{pg}{intact}, {needed} are needed{rotten}"
            )
        }
        (false, _, 0) => {
            format!("{which} with {present} of {members} copies or shards (chunk {index} of pg{pg}){rotten}")
        }
        (false, ..) => format!(
            "{which} with {present} of {members} copies or shards (chunk {index} of pg{pg}); {unknown} members are away or catch up{rotten}"
        ),
    }
}

fn not_leading() -> WireError {
    WireError::new(ErrorCode::Unavailable, "another member leads the partition now; start the check again")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever asks for a repair while the daily check is under way would be told to ask for a repair.
    #[test]
    fn who_joins_a_check_gets_a_repair() {
        let desk = FsckDesk::default();
        let ask = |repair| desk.ask(&FsckRequest { start: true, repair, ..Default::default() }).expect("asked").run;
        let run = ask(false);
        assert_eq!((ask(false), desk.run.lock().repair), (run, false));
        assert_eq!((ask(true), desk.run.lock().repair), (run, true));
        assert_eq!((ask(false), desk.run.lock().repair), (run, true), "it is not taken back");
    }
}
