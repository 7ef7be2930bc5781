//! StartJob, ListJobs, CancelJob; TakeJob and ReportJob of the servers that do the work.
//!
//! A job belongs to one server at a time. One that is silent for [`SILENCE`] (counted anew by a new leader) loses it to
//! the next server that asks; its later reports are refused, and it stops.
use crate::manager::Manager;
use cairn_manager_core::command::{AssignJob, CancelJob, Command, ReportJob, StartJob};
use cairn_manager_core::job::{Job, JobState, nothing_to_cancel, unknown_job};
use cairn_manager_core::{Outcome, plan};
use cairn_types::{ErrorCode, Layout, NodeId, VolumeId};
use cairn_wire::error::WireError;
use cairn_wire::manager::{
    CancelJobRequest, JobResponse, ListJobsRequest, ListJobsResponse, ReportJobRequest, ReportJobResponse,
    StartJobRequest, TakeJobRequest,
};
use std::time::Duration;

/// A server reports every few seconds.
const SILENCE: Duration = Duration::from_secs(30);

/// Two jobs in one tree would undo each other's work; nothing would be lost.
fn is_in_the_way(job: &Job, request: &StartJobRequest) -> bool {
    let within = |path: &[u8], tree: &[u8]| {
        let tree = tree.strip_suffix(b"/").unwrap_or(tree);
        path.strip_prefix(tree).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    };
    job.state.is_live()
        && job.volume.0 == request.volume
        && (within(&request.path, &job.path) || within(&job.path, &request.path))
}

fn already_converted(job: &Job) -> WireError {
    let (id, path, layout) = (job.id, String::from_utf8_lossy(&job.path), job.layout);
    let text = format!(
        "job {id} gives {path} the layout {layout} already ({}); `cairn fs layout jobs {id}` follows it, `cairn fs layout cancel {id}` ends it",
        job.state.name()
    );
    WireError::new(ErrorCode::Conflict, text)
}

impl Manager {
    pub(crate) async fn start_job(&self, request: StartJobRequest) -> Result<JobResponse, WireError> {
        let layout = Layout::from_bits(request.layout)
            .ok_or_else(|| WireError::new(ErrorCode::BadLayout, "the layout is not one of this version"))?;
        self.look_in_cluster(|state, _| plan::check_layout(state, layout))?;
        let who = request.who.clone().ok_or_else(|| WireError::new(ErrorCode::BadRequest, "nobody asks"))?;
        self.look_in_cluster(|state, _| match state.jobs().find(|job| is_in_the_way(job, &request)) {
            Some(job) => Err(already_converted(job)),
            None => state.too_many_jobs(VolumeId(request.volume)).map_or(Ok(()), Err),
        })?;
        let command = StartJob {
            volume: request.volume,
            path: request.path,
            layout: request.layout,
            uid: who.uid,
            gid: who.gid,
            groups: who.groups,
        };
        let job = self.execute_job(Command::StartJob(command)).await?;
        tracing::info!(job = job.id, %layout, path = ?String::from_utf8_lossy(&job.path), "job queued");
        Ok(JobResponse { job: Some(job.to_message()) })
    }

    pub(crate) fn list_jobs(&self, request: &ListJobsRequest) -> Result<ListJobsResponse, WireError> {
        let jobs = self.look_in_cluster(|state, _| match request.job {
            0 => Ok(state.jobs().rev().map(Job::to_message).collect()),
            id => state.job(id).map(|job| vec![job.to_message()]).ok_or_else(|| unknown_job(id)),
        })?;
        Ok(ListJobsResponse { jobs })
    }

    pub(crate) async fn cancel_job(&self, request: CancelJobRequest) -> Result<JobResponse, WireError> {
        let who =
            request.who.unwrap_or_else(|| cairn_wire::common::Credentials { uid: u32::MAX, ..Default::default() });
        self.look_in_cluster(|state, _| {
            let job = state.job(request.job).ok_or_else(|| unknown_job(request.job))?;
            if who.uid != 0 && who.uid != job.who.uid {
                let text = format!("job {} is of user {}; only that user and root may cancel it", job.id, job.who.uid);
                return Err(WireError::new(ErrorCode::NotPermitted, text));
            }
            if job.state.is_live() { Ok(()) } else { Err(nothing_to_cancel(job)) }
        })?;
        let job = self.execute_job(Command::CancelJob(CancelJob { job: request.job, silent: false })).await?;
        Ok(JobResponse { job: Some(job.to_message()) })
    }

    /// Gives a job that nobody works on: the one whose turn it is.
    pub(crate) async fn take_job(&self, request: TakeJobRequest) -> Result<JobResponse, WireError> {
        let now = self.now();
        let (found, silent) = self.look_in_cluster(|state, leading| {
            let silent = |job: &&Job| {
                let heard = leading.jobs_heard.get(&job.id).copied().unwrap_or(leading.since);
                now.since(heard) > SILENCE
                    || (job.node == NodeId(request.node) && job.incarnation.0 != request.incarnation)
            };
            let queued = state.next_queued();
            let given = || state.jobs().filter(|job| job.state == JobState::Running).find(silent);
            let job = queued.or_else(given).map(|job| (job.id, job.node));
            let cancelling = state.jobs().filter(|job| job.state == JobState::Cancelling);
            let cancelling: Vec<u64> = cancelling.filter(silent).map(|job| job.id).collect();
            if let Some((id, _)) = job {
                // Not to two servers that ask at the same time.
                leading.jobs_heard.insert(id, now);
            }
            Ok((job, cancelling))
        })?;
        for job in silent {
            // Its server would have stopped by now. It may say so in this moment.
            if let Err(error) = self.execute_job(Command::CancelJob(CancelJob { job, silent: true })).await {
                tracing::debug!(job, %error, "a job that was being cancelled has ended otherwise");
            }
        }
        let Some((job, from)) = found else { return Ok(JobResponse::default()) };
        let assign = AssignJob { job, from: from.get(), node: request.node, incarnation: request.incarnation };
        match self.execute_job(Command::AssignJob(assign)).await {
            Ok(job) => Ok(JobResponse { job: Some(job.to_message()) }),
            // Cancelled or given away in this moment.
            Err(error) if matches!(error.code, ErrorCode::Conflict | ErrorCode::NotFound) => Ok(JobResponse::default()),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn report_job(&self, request: ReportJobRequest) -> Result<ReportJobResponse, WireError> {
        let now = self.now();
        let (job, state) = (request.job, request.state);
        let command = ReportJob {
            job,
            node: request.node,
            incarnation: request.incarnation,
            state,
            progress: request.progress,
            message: request.message,
        };
        match self.execute(Command::ReportJob(command)).await {
            Ok(_) => {
                let stop = self.look(|now_is, leading| {
                    match JobState::from_code(state) {
                        Some(JobState::Running) => drop(leading.jobs_heard.insert(job, now)),
                        _ => drop(leading.jobs_heard.remove(&job)),
                    }
                    now_is.job(job).is_some_and(|job| job.state == JobState::Cancelling)
                })?;
                Ok(ReportJobResponse { stop })
            }
            Err(error) if matches!(error.code, ErrorCode::Conflict | ErrorCode::NotFound) => {
                Ok(ReportJobResponse { stop: true })
            }
            Err(error) => Err(error),
        }
    }

    /// Logs a command about a job and gives the job as it is then.
    async fn execute_job(&self, command: Command) -> Result<Job, WireError> {
        let Outcome::Job(id) = self.execute(command).await? else {
            return Err(WireError::new(ErrorCode::Internal, "a command about a job came to something else"));
        };
        self.look(|state, _| state.job(id).cloned())?.ok_or_else(|| unknown_job(id))
    }
}
