//! Comparing what members list: now and then, for each group, members exchange digests of their lists of sealed chunks;
//! where they differ the lists themselves are compared (`vanished.rs`), and what this member lacks is brought back.
//!
//! One task a node goes through all groups of its disks: soon after the start, then once in `compare_every`, or in the
//! scrub period if that is shorter. So what no reader asks for is missed all the same, and told to the manager.
//! Invariants: a group that could not be compared with all serving members is compared again in the next pass; one
//! group at a time, with rests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_chunk_core::fence;
use cairn_chunk_core::list_digest::{DIGEST_CHUNKS, ListDigest, ListedChunk};
use cairn_rpc::{Reply, Request};
use cairn_types::{DiskId, ErrorCode, PgId};
use cairn_wire::Opcode;
use cairn_wire::data::{ListDigestsRequest, ListDigestsResponse, RangeDigest};
use cairn_wire::error::WireError;

use super::disk_calls::on_control;
use super::member::{Member, bad_request};
use super::{Inner, Refused};
use crate::disk::Chunk;

/// Ranges of one answer.
const RANGES_MAX: usize = 16;
/// Longest rest between two groups.
const REST_MAX: Duration = Duration::from_secs(1);
/// Between two looks whether it is time.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Inner {
    /// Compares all groups of the node again and again.
    pub(super) fn start_comparing(self: &Arc<Self>) {
        let (weak, first) = (Arc::downgrade(self), self.config.look_after);
        self.tasks.spawn(async move {
            tokio::time::sleep(first).await;
            loop {
                let Some(inner) = weak.upgrade().filter(|inner| !inner.is_stopping()) else { return };
                let (began, whole) = (inner.clock.now(), inner.compare_all().await);
                drop(inner);
                loop {
                    let Some(inner) = weak.upgrade().filter(|inner| !inner.is_stopping()) else { return };
                    let every = inner.compare_every();
                    // While a member is away, or starts, it is looked more often.
                    let every = if whole { every } else { (every / 10).max(inner.config.look_after) };
                    let left = every.saturating_sub(inner.clock.now().since(began));
                    drop(inner);
                    if left.is_zero() {
                        break;
                    }
                    tokio::time::sleep(left.min(LOOK_EVERY)).await;
                }
            }
        });
    }

    /// How long until the same group is compared again.
    fn compare_every(&self) -> Duration {
        self.config.compare_every.min(self.scrubs.period())
    }

    /// One pass; whether every group could be compared with all its members that serve.
    async fn compare_all(self: &Arc<Self>) -> bool {
        let slots: Vec<_> = self.by_id.read().iter().map(|(id, slot)| (*id, slot.clone())).collect();
        let mut groups: Vec<(DiskId, PgId)> = Vec::new();
        for (disk, slot) in slots {
            let Some(store) = slot.store().filter(|store| store.failure().is_none()) else { continue };
            groups.extend(store.pg_files().all().iter().map(|record| (disk, record.pg)));
        }
        let rest = self.compare_every() / u32::try_from(groups.len() * 2 + 1).unwrap_or(u32::MAX);
        let mut whole = true;
        for (disk, pg) in groups {
            let Ok(member) = self.member(disk.get(), pg.get(), 0) else { continue };
            if member.pg.retired || self.is_stopping() || fence::check_read(&member.pg, disk).is_err() {
                continue;
            }
            self.restore_lost(&member);
            if let Err(error) = self.compare(&member).await {
                tracing::debug!(%disk, %pg, %error, "what others list could not be compared with what is here");
                whole = false;
            }
            tokio::time::sleep(rest.min(REST_MAX)).await;
        }
        whole
    }

    /// Compares a group with what all other serving members list.
    async fn compare(self: &Arc<Self>, member: &Member) -> Result<(), WireError> {
        let others: Vec<DiskId> = fence::serving(&member.pg).filter(|other| *other != member.disk).collect();
        if others.is_empty() {
            return Ok(());
        }
        let (mut from, mut problem) = (0, None);
        loop {
            let ours = {
                let member = member.clone();
                on_control(&member.store.clone(), move |_| Ok(digests(&member, from))).await?
            };
            let question =
                |disk: &DiskId| ListDigestsRequest { disk: disk.get(), pg: member.pg.pg.get(), from_index: from };
            let questions = others.iter().map(|disk| (*disk, question(disk))).collect();
            let mut pages: Vec<ListDigestsResponse> = Vec::new();
            for (disk, answer) in self.ask_each(&member.pg, Opcode::ListDigests, questions).await {
                match answer {
                    Ok(page) => pages.push(page),
                    // A member of an earlier build: its whole list is compared.
                    Err(error) if error.code == ErrorCode::UnknownOperation => {
                        return self.note_vanished(member, 0..=u32::MAX).await.map(drop);
                    }
                    Err(error) => problem = Some((disk, error)),
                }
            }
            let (ranges, next) = differing(&ours, &pages);
            for first in ranges {
                self.note_vanished(member, first..=first.saturating_add(DIGEST_CHUNKS - 1)).await?;
            }
            match next {
                Some(next) if next > from && self.is_current(member) => from = next,
                _ => break,
            }
        }
        match problem {
            None => Ok(()),
            Some((disk, error)) => {
                let text = format!("{disk} was not compared: {error}");
                Err(WireError::new(ErrorCode::Unavailable, text))
            }
        }
    }

    /// What this member lists, as digests.
    pub(super) fn list_digests(self: &Arc<Self>, request: &Request<'_>, reply: Reply) -> Result<(), Refused> {
        let checked = request.decode().and_then(|asked: ListDigestsRequest| {
            if !asked.from_index.is_multiple_of(DIGEST_CHUNKS) {
                return Err(bad_request("a digest begins with the first index of its range"));
            }
            Ok((self.member(asked.disk, asked.pg, 0)?, asked))
        });
        let (member, asked) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err((reply, error)),
        };
        self.on_control(member, reply, move |member, reply| reply.ok(&digests(member, asked.from_index), ()))
    }
}

/// Digests of the ranges from an index on, as many as one answer has. On the control thread: a table may have to be
/// summed up.
fn digests(member: &Member, from: u32) -> ListDigestsResponse {
    let mut answer = ListDigestsResponse { epoch: member.pg.epoch.get(), ..ListDigestsResponse::default() };
    let mut at = from;
    for _ in 0..RANGES_MAX {
        // Groups may have few chunks under high indices.
        let Some(next) = member.store.list(member.pg.pg, at, 1).first().map(|chunk| chunk.info().id.index) else {
            return answer;
        };
        let first = next - next % DIGEST_CHUNKS;
        let mut digest = ListDigest::new(!member.is_striped());
        let chunks = member.store.list(member.pg.pg, first, DIGEST_CHUNKS as usize);
        let end = first.saturating_add(DIGEST_CHUNKS - 1);
        chunks.iter().take_while(|chunk| chunk.info().id.index <= end).for_each(|chunk| digest.add(listed(chunk)));
        if digest.count() > 0 {
            let range = RangeDigest { first_index: first, chunks: digest.count(), digest: digest.value() };
            answer.ranges.push(range);
        }
        let Some(next) = end.checked_add(1) else { return answer };
        at = next;
    }
    answer.next_index = at;
    answer
}

fn listed(chunk: &Arc<Chunk>) -> ListedChunk {
    let info = chunk.info();
    ListedChunk {
        index: info.id.index,
        length: info.length,
        sealed: info.sealed && !chunk.is_deleted(),
        table_crc: info.table_crc,
        changed: info.punched_blocks > 0 || info.overwrite.is_some(),
    }
}

/// Ranges in which lists differ, as far as all pages reach, and where to go on.
fn differing(ours: &ListDigestsResponse, theirs: &[ListDigestsResponse]) -> (BTreeSet<u32>, Option<u32>) {
    let all = || std::iter::once(ours).chain(theirs);
    let next = all().map(|page| page.next_index).filter(|next| *next > 0).min();
    let by_range = |page: &ListDigestsResponse| -> BTreeMap<u32, (u32, u64)> {
        page.ranges.iter().map(|range| (range.first_index, (range.chunks, range.digest))).collect()
    };
    let ours = by_range(ours);
    let theirs: Vec<_> = theirs.iter().map(by_range).collect();
    let known: BTreeSet<u32> = theirs.iter().flat_map(|page| page.keys().copied()).collect();
    // What nobody else lists, nobody can bring.
    let differs =
        |first: &u32| theirs.iter().any(|page| page.contains_key(first) && page.get(first) != ours.get(first));
    (known.into_iter().filter(|first| next.is_none_or(|next| *first < next) && differs(first)).collect(), next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(ranges: &[(u32, u64)], next_index: u32) -> ListDigestsResponse {
        let range = |(first, digest): &(u32, u64)| RangeDigest { first_index: *first, chunks: 5, digest: *digest };
        ListDigestsResponse { ranges: ranges.iter().map(range).collect(), next_index, epoch: 1 }
    }

    /// What one member lacks would never be looked for, or all lists be compared for ever.
    #[test]
    fn ranges_that_differ_from_any_other_member_are_looked_at() {
        let same = page(&[(0, 7), (1024, 8)], 0);
        assert_eq!(differing(&same, &[same.clone(), same.clone()]), (BTreeSet::new(), None));
        let other = page(&[(0, 7), (1024, 9)], 0);
        assert_eq!(differing(&same, &[same.clone(), other]).0, BTreeSet::from([1024]));
        // A whole range is missing here; or there, which is for that member to see.
        assert_eq!(differing(&page(&[(0, 7)], 0), std::slice::from_ref(&same)).0, BTreeSet::from([1024]));
        assert_eq!(differing(&same, &[page(&[(0, 7)], 0)]).0, BTreeSet::new());
        // Only as far as all were told.
        let short = page(&[(0, 1)], 1024);
        assert_eq!(differing(&same, &[short, page(&[(0, 7), (1024, 1)], 2048)]), (BTreeSet::from([0]), Some(1024)));
    }
}
