//! Jobs: long work on a tree, such as the conversion of files to another layout, that the manager keeps and servers do.
//! [`Job`] and [`JobProgress`], and the calls of who starts one and of who does it.
use crate::connect::Client;
use crate::credentials::Credentials;
use crate::error::Result;
use crate::malformed::Malformed;
use cairn_types::Layout;
use cairn_wire::Opcode;
use cairn_wire::manager::{
    self, CancelJobRequest, JobResponse, ListJobsRequest, ListJobsResponse, ReportJobRequest, ReportJobResponse,
    StartJobRequest, TakeJobRequest,
};

/// Where a job stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobState {
    /// No server has it yet.
    Queued,
    Running,
    Done,
    Failed,
    Cancelled,
    /// It is to be cancelled, and its server has not stopped yet.
    Cancelling,
    /// A state of a later version.
    Unknown(u32),
}

impl JobState {
    fn of_wire(code: u32) -> Self {
        match code {
            0 => Self::Queued,
            1 => Self::Running,
            2 => Self::Done,
            3 => Self::Failed,
            4 => Self::Cancelled,
            5 => Self::Cancelling,
            code => Self::Unknown(code),
        }
    }
    const fn code(self) -> u32 {
        match self {
            Self::Queued => 0,
            Self::Running => 1,
            Self::Done => 2,
            Self::Failed => 3,
            Self::Cancelled => 4,
            Self::Cancelling => 5,
            Self::Unknown(code) => code,
        }
    }
    /// For people and programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Cancelling => "cancelling",
            Self::Unknown(_) => "unknown",
        }
    }
    /// Something is done, or will be.
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Queued | Self::Running | Self::Cancelling)
    }
}

/// How far a job is. Files and bytes of files; directories and links are none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JobProgress {
    pub files_seen: u64,
    /// Converted.
    pub files_done: u64,
    /// Had the layout already.
    pub files_kept: u64,
    pub files_failed: u64,
    /// Found so far, those done among them.
    pub files_total: u64,
    pub bytes_done: u64,
    /// Written anew so far of files that are worked on.
    pub bytes_under_way: u64,
    /// Of files that were kept or failed.
    pub bytes_passed: u64,
    pub bytes_total: u64,
    /// Less on all disks, where files are encoded.
    pub bytes_freed: u64,
    /// Nothing more will be found.
    pub total_known: bool,
    /// Path that is worked on.
    pub at: Vec<u8>,
    pub last_failure: String,
}

impl JobProgress {
    fn of_wire(found: manager::JobProgress) -> Self {
        Self {
            files_seen: found.files_seen,
            files_done: found.files_done,
            files_kept: found.files_kept,
            files_failed: found.files_failed,
            files_total: found.files_total,
            bytes_done: found.bytes_done,
            bytes_under_way: found.bytes_under_way,
            bytes_passed: found.bytes_passed,
            bytes_total: found.bytes_total,
            bytes_freed: found.bytes_freed,
            total_known: found.total_known,
            at: found.at,
            last_failure: found.last_failure,
        }
    }
    fn into_wire(self) -> manager::JobProgress {
        manager::JobProgress {
            files_seen: self.files_seen,
            files_done: self.files_done,
            files_kept: self.files_kept,
            files_failed: self.files_failed,
            files_total: self.files_total,
            bytes_done: self.bytes_done,
            bytes_under_way: self.bytes_under_way,
            bytes_passed: self.bytes_passed,
            bytes_total: self.bytes_total,
            bytes_freed: self.bytes_freed,
            total_known: self.total_known,
            at: self.at,
            last_failure: self.last_failure,
        }
    }
}

/// A job, as the manager knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    pub id: u64,
    pub volume: u32,
    /// Of the file or directory.
    pub path: Vec<u8>,
    /// Bits of the [`Layout`] that everything below gets, which may be one of a later version. In the stage "encoded":
    /// what has a later scheme is encoded now.
    pub layout: u64,
    /// In whose name.
    pub who: Credentials,
    pub state: JobState,
    /// That works on it; 0: none.
    pub node: u32,
    pub progress: JobProgress,
    /// Of a failed one: what failed and what to do.
    pub message: String,
    pub created_ns: u64,
    pub finished_ns: u64,
}

impl Job {
    /// It encodes, and converts nothing.
    pub fn encodes(&self) -> bool {
        Layout::from_bits(self.layout).is_some_and(|layout| layout.stage().is_encoded())
    }
    /// One without an owner would be done as root.
    fn of_wire(found: manager::Job) -> std::result::Result<Self, Malformed> {
        Ok(Self {
            id: found.id,
            volume: found.volume,
            path: found.path,
            layout: found.layout,
            who: found.who.map(Credentials::of_wire).ok_or(Malformed::Missing("owner"))?,
            state: JobState::of_wire(found.state),
            node: found.node,
            progress: found.progress.map(JobProgress::of_wire).unwrap_or_default(),
            message: found.message,
            created_ns: found.created_ns,
            finished_ns: found.finished_ns,
        })
    }
    fn of_answer(found: JobResponse) -> std::result::Result<Self, Malformed> {
        Self::of_wire(found.job.ok_or(Malformed::Missing("job"))?)
    }
}

/// The server that does a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobServer {
    pub node: u32,
    /// Which of its runs.
    pub incarnation: u64,
}

impl Client {
    /// Starts a job on a tree of a volume; `what` names it in errors.
    pub async fn start_job(
        &self,
        what: &str,
        (volume, path): (u32, Vec<u8>),
        layout: Layout,
        who: &Credentials,
    ) -> Result<Job> {
        let request = StartJobRequest { volume, path, layout: layout.to_bits(), who: Some(who.to_wire()) };
        Job::of_answer(self.manager(what, Opcode::StartJob, &request).await?).map_err(|odd| odd.of(what))
    }
    /// All that are kept, the newest first, or only one.
    pub async fn jobs(&self, only: Option<u64>) -> Result<Vec<Job>> {
        self.list_jobs("jobs", only.unwrap_or(0)).await
    }
    /// One of them; `None`: it is not kept any more.
    pub async fn job(&self, what: &str, id: u64) -> Result<Option<Job>> {
        Ok(self.list_jobs(what, id).await?.pop())
    }
    async fn list_jobs(&self, what: &str, job: u64) -> Result<Vec<Job>> {
        let answer: ListJobsResponse = self.manager(what, Opcode::ListJobs, &ListJobsRequest { job }).await?;
        let jobs: std::result::Result<_, Malformed> = answer.jobs.into_iter().map(Job::of_wire).collect();
        jobs.map_err(|odd| odd.of(what))
    }
    /// Has it stopped. It may still be live in the answer: its server stops in a moment.
    pub async fn cancel_job(&self, what: &str, job: u64, who: &Credentials) -> Result<Job> {
        let request = CancelJobRequest { job, who: Some(who.to_wire()) };
        Job::of_answer(self.manager(what, Opcode::CancelJob, &request).await?).map_err(|odd| odd.of(what))
    }
    /// Asks for work; `None`: there is none.
    pub async fn take_job(&self, JobServer { node, incarnation }: JobServer) -> Result<Option<Job>> {
        let what = "asking for work";
        let answer: JobResponse = self.manager(what, Opcode::TakeJob, &TakeJobRequest { node, incarnation }).await?;
        answer.job.map(Job::of_wire).transpose().map_err(|odd| odd.of(what))
    }
    /// Says how far a job is. True: it is to be stopped, or another server has it.
    pub async fn report_job(
        &self,
        JobServer { node, incarnation }: JobServer,
        (job, state): (u64, JobState),
        progress: JobProgress,
        message: String,
    ) -> Result<bool> {
        let (state, progress) = (state.code(), Some(progress.into_wire()));
        let request = ReportJobRequest { job, node, incarnation, state, progress, message };
        Ok(self.manager::<ReportJobResponse>("reporting a job", Opcode::ReportJob, &request).await?.stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job that nobody owns would be done as root.
    #[test]
    fn a_job_has_an_owner_and_a_state() {
        let who = Some(cairn_wire::common::Credentials { uid: 7, ..Default::default() });
        let found = manager::Job { id: 3, state: 5, who, ..Default::default() };
        let job = Job::of_wire(found.clone()).expect("a job");
        assert_eq!((job.state, job.who.uid, job.state.is_live()), (JobState::Cancelling, 7, true));
        assert_eq!(Job::of_wire(manager::Job { who: None, ..found }), Err(Malformed::Missing("owner")));
        assert_eq!(Job::of_answer(JobResponse::default()), Err(Malformed::Missing("job")));
        for code in 0..7 {
            assert_eq!(JobState::of_wire(code).code(), code);
        }
        assert_eq!((JobState::of_wire(6).name(), JobState::of_wire(6).is_live()), ("unknown", false));
    }

    /// What a server did would be told as something else.
    #[test]
    fn progress_comes_back_as_it_was() {
        let told = JobProgress {
            files_seen: 1,
            files_done: 2,
            files_kept: 3,
            files_failed: 4,
            files_total: 5,
            bytes_done: 6,
            bytes_under_way: 7,
            bytes_passed: 8,
            bytes_total: 9,
            bytes_freed: 10,
            total_known: true,
            at: b"/a".to_vec(),
            last_failure: "no".into(),
        };
        assert_eq!(JobProgress::of_wire(told.clone().into_wire()), told);
    }
}
