//! Publishing what writers of this client left durably: one operation of the metadata at a time for a file, with what
//! came meanwhile of all its lanes.
//!
//! The primary of each lane asks a writer once a second, or for 8 MiB. Whoever is asked publishes the other lanes of
//! this client as well, so their seconds begin together, and the file has one operation a second however many lanes
//! there are. Invariant: what is published was answered as durable up to there by the chunk's primary. Bounds:
//! [`FILES_MAX`] files, and the lanes of each.
use super::chunk::{AppendChunk, NotTaken, tell};
use super::settle::{Failure, check};
use crate::error::Result;
use crate::meta::volume::Volume;
use cairn_types::Time;
use cairn_wire::Opcode;
use cairn_wire::data::{RecordAppendResponse, RecordsTold};
use cairn_wire::meta::PublishTo;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// Files whose publishing is known.
const FILES_MAX: usize = 1024;
/// Others that are published with one.
const MORE_MAX: usize = 15;
/// Lanes whose primaries answer so soon are published together.
const GATHER: Duration = Duration::from_millis(50);
/// A partition that does only one at a time is asked for more again after this.
const ALONE: Duration = Duration::from_secs(60);

pub(super) type Answer = std::result::Result<RecordAppendResponse, NotTaken>;

/// By volume and inode.
#[derive(Default)]
pub(super) struct Publishers(Mutex<BTreeMap<(u32, u64), Arc<Publisher>>>);

impl Publishers {
    pub fn of(&self, volume: u32, inode: u64) -> Arc<Publisher> {
        let mut all = self.0.lock();
        while all.len() >= FILES_MAX && !all.contains_key(&(volume, inode)) {
            all.pop_first();
        }
        all.entry((volume, inode)).or_default().clone()
    }
}

/// What the writers of this client share to publish one file.
#[derive(Default)]
pub(super) struct Publisher {
    /// Over so many lanes they are spread.
    pub lanes_known: Arc<AtomicU32>,
    lanes: Mutex<Lanes>,
    /// Up to where appends are to be published, by their numbers.
    wanted: Mutex<BTreeMap<u64, u64>>,
    /// Locked while one of them does it.
    done: tokio::sync::Mutex<Done>,
}

#[derive(Default)]
struct Lanes {
    /// The last append of each lane to which one of them wrote, its end, and how much of it the file has, as answers
    /// had it.
    last: BTreeMap<u32, (AppendChunk, u64, u64)>,
    /// Numbers of those whose primaries are asked to make them publishable.
    asked: BTreeSet<u64>,
}

#[derive(Default)]
struct Done {
    /// How much the file has of the last append of each lane that was published.
    published: BTreeMap<u64, (u64, u64)>,
    failed: Failure,
    /// Since when it is known that each has to be published alone.
    alone: Option<Time>,
}

impl Done {
    fn note(&mut self, number: u64, published: u64) {
        let last = self.published.entry(lane_of(number)).or_default();
        *last = (number, published).max(*last);
    }

    fn has(&self, number: u64, to: u64) -> Option<u64> {
        let (last, published) = self.published.get(&lane_of(number))?;
        Some(*published).filter(|published| *last == number && *published >= to)
    }
}

fn lane_of(number: u64) -> u64 {
    number >> 56
}

impl Publisher {
    /// A primary answered.
    pub fn heard(&self, lane: u32, chunk: AppendChunk, answer: &RecordAppendResponse) {
        let mut lanes = self.lanes.lock();
        let last = lanes.last.entry(lane).or_insert((chunk, 0, 0));
        if last.0.number != chunk.number {
            *last = (chunk, 0, 0);
        }
        (last.1, last.2) = (last.1.max(answer.end), last.2.max(answer.published));
    }

    /// A primary asks for this one to be published: it, and others that lack something. None: that is being done.
    pub fn begin(self: &Arc<Self>, chunk: AppendChunk) -> Vec<Asked> {
        let mut lanes = self.lanes.lock();
        let Lanes { last, asked } = &mut *lanes;
        if !asked.insert(chunk.number) {
            return Vec::new();
        }
        let mut all = vec![Asked { publisher: self.clone(), chunk }];
        for (other, end, published) in last.values_mut() {
            let lacks = end > published;
            *published = *end;
            if lacks && asked.insert(other.number) {
                all.push(Asked { publisher: self.clone(), chunk: *other });
            }
        }
        all
    }

    fn want(&self, number: u64, to: u64) {
        let mut wanted = self.wanted.lock();
        let most = wanted.entry(number).or_default();
        *most = to.max(*most);
    }
}

/// The primary of this one is asked to make it publishable; nobody else of this client does that meanwhile.
pub(super) struct Asked {
    publisher: Arc<Publisher>,
    pub chunk: AppendChunk,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.publisher.lanes.lock().asked.remove(&self.chunk.number);
    }
}

/// The file gets what is durable up to there.
pub(super) async fn publish_to(volume: &Volume, inode: u64, path: &[u8], chunk: AppendChunk, to: u64) -> Result<u64> {
    let (cluster, number) = (volume.cluster(), chunk.number);
    let publisher = cluster.shared.of::<Publishers>().of(volume.id(), inode);
    let asked = cluster.clock.now();
    publisher.want(number, to);
    let mut done = publisher.done.lock().await;
    if let Some(published) = done.has(number, to) {
        return Ok(published);
    }
    done.failed.since(asked, cluster.patience)?;
    let mut all = std::mem::take(&mut *publisher.wanted.lock());
    let to = all.remove(&number).unwrap_or(to).max(to);
    let is_alone = done.alone.is_some_and(|since| asked.since(since) < ALONE);
    let more = all.into_iter().take(if is_alone { 0 } else { MORE_MAX });
    let more: Vec<PublishTo> = more.map(|(number, to)| PublishTo { number, to }).collect();
    let asked_for = more.len();
    let answer = match volume.publish_append(Opcode::PublishAppend, inode, path, (number, to, more)).await {
        Ok(answer) => answer,
        Err(error) => {
            done.failed.note(cluster.clock.now(), &error);
            return Err(error);
        }
    };
    done.alone =
        (asked_for > 0 && answer.more.is_empty()).then(|| cluster.clock.now()).or(done.alone.filter(|_| is_alone));
    let published = answer.append.unwrap_or_default().published;
    // One that was closed meanwhile may end with the last record instead of its block.
    check(published, to, chunk, path)?;
    done.note(number, published.max(to));
    answer.more.iter().for_each(|other| done.note(other.number, other.published));
    Ok(published.max(to))
}

/// A primary's answer to who wants what is there to be publishable: publishes it if that is what is left to this
/// client.
pub(super) async fn publish_answered(
    volume: &Volume,
    (inode, path): (u64, &[u8]),
    chunk: AppendChunk,
    answer: &mut RecordAppendResponse,
) -> Result<()> {
    if lacks(answer) {
        let published = publish_to(volume, inode, path, chunk, answer.end).await?;
        tell(chunk, volume.cluster(), RecordsTold { published, ..RecordsTold::default() });
        answer.published = answer.end;
    }
    Ok(())
}

fn lacks(answer: &RecordAppendResponse) -> bool {
    answer.next.is_none() && !answer.roll && answer.published < answer.end
}

/// The primary of `first` asked for it: publishes it, and the others with it as far as their primaries answer about as
/// soon. Gives the first one's answer.
pub(super) async fn publish_all(
    volume: Volume,
    (inode, path): (u64, Arc<[u8]>),
    (first, call): (Asked, impl Future<Output = Answer>),
    mut others: JoinSet<(Asked, Answer)>,
) -> Result<Answer> {
    let mut answer = call.await;
    let (until, mut ready) = (Instant::now() + GATHER, Vec::new());
    while let Ok(Some(Ok((other, answer)))) = timeout_at(until, others.join_next()).await {
        if let Ok(answer) = &answer
            && lacks(answer)
        {
            other.publisher.want(other.chunk.number, answer.end);
        }
        ready.push((other, answer));
    }
    if let Ok(answer) = &mut answer {
        publish_answered(&volume, (inode, &path), first.chunk, answer).await?;
    }
    drop(first);
    let late = move |(other, answer): (Asked, Answer)| {
        let (volume, path) = (volume.clone(), path.clone());
        async move {
            if let Ok(mut answer) = answer
                && let Err(error) = publish_answered(&volume, (inode, &path), other.chunk, &mut answer).await
            {
                tracing::debug!(chunk = %other.chunk.id, %error, "what another lane has was not published");
            }
        }
    };
    for other in ready {
        late(other).await;
    }
    if !others.is_empty() {
        tokio::spawn(async move {
            while let Some(Ok(other)) = others.join_next().await {
                late(other).await;
            }
        });
    }
    Ok(answer)
}
