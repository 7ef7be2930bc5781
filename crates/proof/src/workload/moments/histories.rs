//! [`History`]: what a client did one after the other while a snapshot was taken, and whether what the snapshot has of
//! it is a moment: nothing is missing that was acknowledged before it was asked for, nothing is in it that was begun
//! after it was answered, and what one client was told before another one began is not missing beside the other's.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use cairn_client::{ClientError, RenameMode, Volume};
use cairn_sim::SimRng;
use cairn_types::{ErrorCode, Layout};

use super::super::small::write_one;
use super::portrait::{Portrait, contents};
use crate::file::fresh_bytes;

/// Files of one client at a time, at most.
const FILES_MAX: usize = 5;
/// Operations that are begun after the snapshot was answered.
const AFTER: usize = 2;
/// Times that one is repeated while others go on.
const TRIES: u32 = 3;
/// Between two operations at most; longer the more there were, as a snapshot may be waited for for a minute.
const PAUSE_MS: u64 = 10;

type Files = BTreeMap<Vec<u8>, (u64, u64)>;

/// What a client does.
#[derive(Debug, Clone)]
enum Act {
    Make(Vec<u8>, Vec<u8>),
    Move(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
}

/// Its files after an operation, and when that was begun and acknowledged.
struct State {
    begun: u64,
    acknowledged: Option<u64>,
    files: Files,
}

/// Orders what all of them do.
#[derive(Default)]
pub(super) struct Order {
    clock: AtomicU64,
    is_over: AtomicBool,
}

impl Order {
    pub(super) fn tick(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    /// The snapshot is answered, or is not being taken any more.
    pub(super) fn end(&self, is_over: bool) {
        self.is_over.store(is_over, SeqCst);
    }
}

/// Of one client. No state comes again: each new name has a higher number, and the file with the highest one is not
/// removed.
pub(super) struct History {
    rng: SimRng,
    client: usize,
    next: u64,
    layout: Layout,
    files: Files,
    states: Vec<State>,
    /// Has no known outcome.
    pending: Option<Act>,
}

impl History {
    pub(super) fn new(seed: u64, client: usize, layout: Layout) -> Self {
        let rng = SimRng::derived(seed, &format!("history {client}"));
        Self { rng, client, next: 1, layout, files: Files::new(), states: Vec::new(), pending: None }
    }

    /// What was before is acknowledged.
    pub(super) fn begin(&mut self, order: &Order) {
        let now = order.tick();
        self.states = vec![State { begun: now, acknowledged: Some(now), files: self.files.clone() }];
    }

    fn fresh_path(&mut self, directories: &[String]) -> Vec<u8> {
        self.next += 1;
        format!("{}/w{}.{:06}", self.rng.pick(directories), self.client, self.next).into_bytes()
    }

    fn number(path: &[u8]) -> u64 {
        let text = String::from_utf8_lossy(path);
        text.rsplit('.').next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    fn pick(&mut self, directories: &[String]) -> Act {
        let mut paths: Vec<Vec<u8>> = self.files.keys().cloned().collect();
        paths.sort_by_key(|path| Self::number(path));
        match self.rng.index(10) {
            _ if paths.len() >= FILES_MAX => Act::Remove(paths.swap_remove(0)),
            0 if paths.len() > 1 => Act::Remove(paths.swap_remove(0)),
            1..=5 if !paths.is_empty() => {
                let from = self.rng.pick(&paths).clone();
                Act::Move(from, self.fresh_path(directories))
            }
            _ => {
                let length = 1 + self.rng.index(3000);
                Act::Make(self.fresh_path(directories), fresh_bytes(&self.rng, length))
            }
        }
    }

    fn apply(&mut self, act: &Act) {
        match act {
            Act::Make(path, bytes) => drop(self.files.insert(path.clone(), contents(bytes))),
            Act::Move(from, to) => {
                let moved = self.files.remove(from).expect("it was picked");
                self.files.insert(to.clone(), moved);
            }
            Act::Remove(path) => drop(self.files.remove(path)),
        }
    }

    /// `again`: it may have been done before.
    async fn carry_out(&self, volume: &Volume, act: Act, again: bool) -> Result<(), ClientError> {
        let done = match act {
            Act::Make(path, bytes) => return write_one(volume.clone(), path, self.layout, bytes).await.map(drop),
            Act::Move(from, to) => volume.rename(&from, &to, RenameMode::NoReplace).await,
            Act::Remove(path) => volume.unlink(&path).await,
        };
        match done {
            Err(error) if again && error.code() == Some(ErrorCode::NotFound) => Ok(()),
            done => done,
        }
    }

    /// One operation after the other, until the snapshot is answered and some more. An error: what has no known outcome
    /// is left.
    pub(super) async fn go_on(
        &mut self,
        volume: &Volume,
        directories: &[String],
        order: &Order,
    ) -> Result<(), ClientError> {
        let mut left = AFTER;
        loop {
            if order.is_over.load(SeqCst) {
                if left == 0 {
                    return Ok(());
                }
                left -= 1;
            }
            self.finish(volume, order).await?;
            let pause = self.rng.range(0..PAUSE_MS * (1 + self.operations() as u64 / 8));
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let act = self.pick(directories);
            self.apply(&act);
            self.states.push(State { begun: order.tick(), acknowledged: None, files: self.files.clone() });
            self.pending = Some(act.clone());
            if self.carry_out(volume, act, false).await.is_ok() {
                self.acknowledge(order);
            }
        }
    }

    /// What has no known outcome is repeated.
    pub(super) async fn finish(&mut self, volume: &Volume, order: &Order) -> Result<(), ClientError> {
        let mut tries = 0;
        while let Some(act) = self.pending.clone() {
            tries += 1;
            match self.carry_out(volume, act, true).await {
                Ok(()) => self.acknowledge(order),
                Err(error) if tries == TRIES => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        Ok(())
    }

    fn acknowledge(&mut self, order: &Order) {
        self.pending = None;
        self.states.last_mut().expect("there is one").acknowledged = Some(order.tick());
    }

    pub(super) fn operations(&self) -> usize {
        self.states.len() - 1
    }

    /// Its files are removed by somebody else.
    pub(super) fn leave_files(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.files).into_keys().collect()
    }

    /// Which of its states a snapshot has that was asked for and answered at these times.
    fn state_in(&self, portrait: &Portrait, called: u64, answered: u64) -> Result<usize, String> {
        let prefix = format!("/w{}.", self.client).into_bytes();
        let is_own = |path: &[u8]| {
            path.rsplitn(2, |byte| *byte == b'/').next().is_some_and(|name| name.starts_with(&prefix[1..]))
        };
        let found: Files = portrait
            .iter()
            .filter(|(path, _)| is_own(path))
            .map(|(path, seen)| (path.clone(), seen.contents))
            .collect();
        let first = self.states.iter().rposition(|state| state.acknowledged.is_some_and(|at| at < called)).unwrap_or(0);
        let last = self.states.iter().rposition(|state| state.begun < answered).unwrap_or(0);
        let shown =
            |files: &Files| format!("{:?}", files.keys().map(|path| String::from_utf8_lossy(path)).collect::<Vec<_>>());
        let has = shown(&found);
        match self.states.iter().position(|state| state.files == found) {
            None => {
                let all: Vec<String> = self.states.iter().map(|state| shown(&state.files)).collect();
                Err(format!("client {} never had these files, or not with these bytes: {has}; {all:?}", self.client))
            }
            Some(at) if at < first => {
                let was = shown(&self.states[first].files);
                Err(format!("of client {} it has {has}, although {was} was acknowledged before", self.client))
            }
            Some(at) if at > last => Err(format!("of client {} it has {has}, which was begun after it", self.client)),
            Some(at) => Ok(at),
        }
    }
}

/// Whether what a snapshot has of all of them was so at one moment between two.
pub(super) fn check_moment(
    histories: &[History],
    portrait: &Portrait,
    called: u64,
    answered: u64,
) -> Result<(), String> {
    let (mut latest, mut earliest) = ((0, 0), (u64::MAX, 0));
    for history in histories {
        let at = history.state_in(portrait, called, answered)?;
        latest = latest.max((history.states[at].begun, history.client));
        let next = history.states.get(at + 1).and_then(|state| state.acknowledged).unwrap_or(u64::MAX);
        earliest = earliest.min((next, history.client));
    }
    if latest.0 > earliest.0 {
        return Err(format!(
            "it has what client {} began when client {} had been told of something that it lacks",
            latest.1, earliest.1
        ));
    }
    Ok(())
}
