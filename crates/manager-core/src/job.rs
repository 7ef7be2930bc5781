//! Jobs: long work on a tree that servers do in somebody's name (at present: conversion to another layout, and encoding
//! of what has a later one: a layout in the stage *encoded* asks for that).
//!
//! | is | becomes | when |
//! |---|---|---|
//! | queued | running | given to a node |
//! | running | running, other node | given to another node: the one before was silent |
//! | running | done, failed | its node says so |
//! | queued | cancelled | on request |
//! | running | being cancelled | on request: its server hears of it with its next report |
//! | being cancelled | cancelled | its server has stopped and says so, or is silent |
//! | being cancelled | done, failed | it was at its end anyway |
//!
//! Invariants: at most [`LIVE_MAX`] jobs are queued or running, at most [`KEPT_MAX`] ended ones are kept (the oldest
//! go); what a node reports counts only while the job is its own. A job may be begun again from its start at any time:
//! files that have the layout already are passed over.
use crate::apply::Outcome;
use crate::command::{AssignJob, CancelJob, ReportJob, StartJob};
use crate::config::known_layout;
use crate::items::clip_to;
use crate::state::State;
use cairn_types::{ErrorCode, Incarnation, Layout, NodeId, VolumeId, WallTime};
use cairn_wire::common::Credentials;
use cairn_wire::error::WireError;
use cairn_wire::manager::{Job as JobMessage, JobProgress};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Jobs that are queued or running.
pub const LIVE_MAX: usize = 256;
/// Those of one volume. The leader looks at it before it logs a job: earlier builds apply what is beyond it.
pub const LIVE_OF_VOLUME_MAX: usize = LIVE_MAX / 4;
/// Ended jobs that are kept for people to look at.
pub const KEPT_MAX: usize = 256;
/// Longest text about a failure: it names the file, the cause and the next step.
const MESSAGE_MAX: usize = 2048;
/// Longest path of a job.
const PATH_MAX: usize = 4096;
/// Supplementary groups of the credentials.
const GROUPS_MAX: usize = 64;

/// The numbers are in the log and on the wire: add, never edit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum JobState {
    Queued = 0,
    Running = 1,
    Done = 2,
    Failed = 3,
    Cancelled = 4,
    /// Its server is told to stop.
    Cancelling = 5,
}

impl JobState {
    pub fn from_code(code: u32) -> Option<JobState> {
        Some(match code {
            0 => Self::Queued,
            1 => Self::Running,
            2 => Self::Done,
            3 => Self::Failed,
            4 => Self::Cancelled,
            5 => Self::Cancelling,
            _ => return None,
        })
    }
    pub fn is_live(self) -> bool {
        matches!(self, Self::Queued | Self::Running | Self::Cancelling)
    }
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Cancelling => "being cancelled",
        }
    }
}

/// One job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    pub id: u64,
    pub volume: VolumeId,
    pub path: Vec<u8>,
    pub layout: Layout,
    pub who: Credentials,
    pub state: JobState,
    /// Who works on it, in which of its starts.
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub progress: JobProgress,
    pub message: String,
    pub created: WallTime,
    pub finished: WallTime,
}

impl Job {
    /// For the wire, and for the checkpoint beside the incarnation.
    pub fn to_message(&self) -> JobMessage {
        JobMessage {
            id: self.id,
            volume: self.volume.get(),
            path: self.path.clone(),
            layout: self.layout.to_bits(),
            who: Some(self.who.clone()),
            state: self.state as u32,
            node: self.node.get(),
            progress: Some(self.progress.clone()),
            message: self.message.clone(),
            created_ns: self.created.0,
            finished_ns: self.finished.0,
        }
    }
    /// What `to_message` gave.
    pub fn from_message(message: JobMessage, incarnation: Incarnation) -> Option<Job> {
        Some(Job {
            id: message.id,
            volume: VolumeId(message.volume),
            path: message.path,
            layout: Layout::from_bits(message.layout)?,
            who: message.who?,
            state: JobState::from_code(message.state)?,
            node: NodeId(message.node),
            incarnation,
            progress: message.progress?,
            message: message.message,
            created: WallTime(message.created_ns),
            finished: WallTime(message.finished_ns),
        })
    }
}

/// The answer about a job that is not there.
pub fn unknown_job(id: u64) -> WireError {
    let text = format!("there is no job {id}; `cairn fs layout jobs` shows those that are kept");
    WireError::new(ErrorCode::NotFound, text)
}

/// The answer to who wants to end what has ended.
pub fn nothing_to_cancel(job: &Job) -> WireError {
    let text = format!(
        "job {} is {} already: there is nothing to cancel; cairn fs layout jobs shows those that run",
        job.id,
        job.state.name()
    );
    WireError::new(ErrorCode::Conflict, text)
}

impl State {
    pub fn job(&self, id: u64) -> Option<&Job> {
        self.jobs.get(&id).map(Arc::as_ref)
    }
    /// In the order in which they were started.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = &Job> {
        self.jobs.values().map(Arc::as_ref)
    }

    /// Why a volume gets no more jobs now, if it gets none: one tenant would keep all others from theirs.
    pub fn too_many_jobs(&self, volume: VolumeId) -> Option<WireError> {
        let live = self.jobs().filter(|job| job.volume == volume && job.state.is_live()).count();
        (live >= LIVE_OF_VOLUME_MAX).then(|| {
            let text = format!(
                "{LIVE_OF_VOLUME_MAX} jobs of this volume are queued or running; wait for some to end, or cancel some"
            );
            WireError::new(ErrorCode::Overloaded, text)
        })
    }

    /// The queued job whose turn it is: the oldest one of a volume of which the fewest run.
    pub fn next_queued(&self) -> Option<&Job> {
        let mut running: BTreeMap<VolumeId, usize> = BTreeMap::new();
        let works = |job: &&Job| matches!(job.state, JobState::Running | JobState::Cancelling);
        self.jobs().filter(works).for_each(|job| *running.entry(job.volume).or_default() += 1);
        let queued = self.jobs().filter(|job| job.state == JobState::Queued);
        queued.min_by_key(|job| (running.get(&job.volume).copied().unwrap_or(0), job.id))
    }

    pub(crate) fn start_job(&mut self, time: WallTime, command: &StartJob) -> Result<Outcome, WireError> {
        let volume = VolumeId(command.volume);
        if self.volume(volume).is_none_or(|v| v.deleted) {
            return Err(WireError::new(ErrorCode::UnknownVolume, format!("there is no volume {volume}")));
        }
        if let Some(volume) = self.volume(volume).filter(|v| v.trashed.is_some()) {
            return Err(crate::apply::in_trash(&volume.name));
        }
        let layout = known_layout(command.layout, self.level)
            .ok_or_else(|| WireError::new(ErrorCode::BadLayout, "the layout is not one of this version"))?;
        if command.path.is_empty() || command.path.len() > PATH_MAX || command.groups.len() > GROUPS_MAX {
            return Err(WireError::new(ErrorCode::InvalidArgument, "a job has a path of 1 to 4096 bytes"));
        }
        if self.jobs().filter(|job| job.state.is_live()).count() >= LIVE_MAX {
            let text = format!("{LIVE_MAX} jobs are queued or running; wait for some to end, or cancel some");
            return Err(WireError::new(ErrorCode::Overloaded, text));
        }
        let id = self.next.job;
        self.next.job += 1;
        let who = Credentials { uid: command.uid, gid: command.gid, groups: command.groups.clone() };
        let job = Job {
            id,
            volume,
            path: command.path.clone(),
            layout,
            who,
            state: JobState::Queued,
            node: NodeId(0),
            incarnation: Incarnation(0),
            progress: JobProgress::default(),
            message: String::new(),
            created: time,
            finished: WallTime(0),
        };
        self.jobs.insert(id, Arc::new(job));
        Ok(Outcome::Job(id))
    }

    pub(crate) fn assign_job(&mut self, command: &AssignJob) -> Result<Outcome, WireError> {
        let job = self.jobs.get_mut(&command.job).ok_or_else(|| unknown_job(command.job))?;
        if !matches!(job.state, JobState::Queued | JobState::Running) || job.node != NodeId(command.from) {
            return Err(WireError::new(ErrorCode::Conflict, "the job was given away or ended meanwhile"));
        }
        let job = Arc::make_mut(job);
        job.state = JobState::Running;
        job.node = NodeId(command.node);
        job.incarnation = Incarnation(command.incarnation);
        Ok(Outcome::Job(command.job))
    }

    pub(crate) fn report_job(&mut self, time: WallTime, command: &ReportJob) -> Result<Outcome, WireError> {
        let job = self.jobs.get_mut(&command.job).ok_or_else(|| unknown_job(command.job))?;
        let own = job.node == NodeId(command.node) && job.incarnation == Incarnation(command.incarnation);
        let cancelling = job.state == JobState::Cancelling;
        if !(job.state == JobState::Running || cancelling) || !own {
            return Err(WireError::new(ErrorCode::Conflict, "the job is not this server's any more"));
        }
        let state = match JobState::from_code(command.state) {
            Some(JobState::Running) => job.state,
            Some(state @ (JobState::Done | JobState::Failed)) => state,
            Some(JobState::Cancelled) if cancelling => JobState::Cancelled,
            _ => return Err(WireError::new(ErrorCode::InvalidArgument, "a job is reported running, done or failed")),
        };
        let job = Arc::make_mut(job);
        job.state = state;
        job.progress = command.progress.clone().unwrap_or_default();
        job.progress.at.truncate(PATH_MAX);
        job.progress.last_failure = clip_to(&job.progress.last_failure, MESSAGE_MAX);
        job.message = clip_to(&command.message, MESSAGE_MAX);
        self.end_job(time, command.job);
        Ok(Outcome::Done)
    }

    pub(crate) fn cancel_job(&mut self, time: WallTime, command: &CancelJob) -> Result<Outcome, WireError> {
        let job = self.jobs.get_mut(&command.job).ok_or_else(|| unknown_job(command.job))?;
        let state = match job.state {
            JobState::Queued => JobState::Cancelled,
            JobState::Running | JobState::Cancelling if command.silent => JobState::Cancelled,
            JobState::Running | JobState::Cancelling => JobState::Cancelling,
            JobState::Done | JobState::Failed | JobState::Cancelled => return Err(nothing_to_cancel(job)),
        };
        Arc::make_mut(job).state = state;
        self.end_job(time, command.job);
        Ok(Outcome::Job(command.job))
    }

    /// Notes when a job ended; forgets the oldest of those that ended.
    fn end_job(&mut self, time: WallTime, id: u64) {
        if let Some(job) = self.jobs.get_mut(&id)
            && !job.state.is_live()
        {
            Arc::make_mut(job).finished = time;
        }
        let ended: Vec<u64> = self.jobs().filter(|job| !job.state.is_live()).map(|job| job.id).collect();
        for id in ended.iter().take(ended.len().saturating_sub(KEPT_MAX)) {
            self.jobs.remove(id);
        }
    }
}

#[cfg(test)]
mod tests;
