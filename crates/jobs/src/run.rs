//! One job: the tree is walked, some files at a time are converted, the manager is told how far it is.
use crate::{FILES_AT_ONCE, REPORT_PATIENCE, REPORT_PAUSE};
use cairn_client::{Client, ClientError, Conversion, TreeStep, TreeWalk, Volume};
use cairn_types::Layout;
use cairn_wire::Opcode;
use cairn_wire::manager::{Job, JobProgress, ReportJobRequest, ReportJobResponse};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// States of a job as they are reported.
const RUNNING: u32 = 1;
const DONE: u32 = 2;
const FAILED: u32 = 3;

/// A job that this node has.
pub(crate) struct Running {
    pub client: Client,
    pub job: Job,
    pub node: u32,
    pub incarnation: u64,
}

/// How a job ended here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Done,
    Failed,
    /// It was cancelled, or is another server's now.
    Stopped,
}

impl Running {
    /// Works until the job is done or taken away.
    pub(crate) async fn run(&self) -> End {
        let progress = Arc::new(Mutex::new(JobProgress::default()));
        let work = self.work(&progress);
        let end = tokio::select! {
            outcome = work => Some(outcome),
            () = self.report_regularly(&progress) => None,
        };
        let Some(outcome) = end else { return End::Stopped };
        let last = progress.lock().clone();
        let (end, state, message) = match outcome {
            Err(error) => (End::Failed, FAILED, error.to_string()),
            Ok(()) if last.files_failed > 0 => {
                let text = format!(
                    "{} of {} could not be converted and are as they were, the last: {}; start the job again when the \
                     cause is mended, what is converted is passed over",
                    last.files_failed, last.files_seen, last.last_failure
                );
                (End::Failed, FAILED, text)
            }
            Ok(()) => (End::Done, DONE, String::new()),
        };
        match self.report(state, last, message).await {
            Ok(false) => end,
            Ok(true) => End::Stopped,
            Err(error) => {
                // Whoever takes it over finds everything converted.
                tracing::warn!(job = self.job.id, %error, "the end of a job could not be reported");
                end
            }
        }
    }

    async fn work(&self, progress: &Arc<Mutex<JobProgress>>) -> Result<(), ClientError> {
        let shown = String::from_utf8_lossy(&self.job.path).into_owned();
        let layout = Layout::from_bits(self.job.layout)
            .ok_or_else(|| ClientError::protocol(&shown, "the job has a layout of a later version"))?;
        let volume = self.volume(&shown).await?;
        let outcome = self.walk(&volume, layout, progress).await;
        volume.close().await;
        outcome
    }

    async fn volume(&self, shown: &str) -> Result<Volume, ClientError> {
        let view = self.client.refresh().await?;
        let name = view.volumes.get(&self.job.volume).map(|volume| volume.name.clone());
        match name {
            Some(name) => self.client.volume(&name).await,
            None => Err(ClientError::protocol(shown, format!("volume v{} of the job is gone", self.job.volume))),
        }
    }

    async fn walk(
        &self,
        volume: &Volume,
        layout: Layout,
        progress: &Arc<Mutex<JobProgress>>,
    ) -> Result<(), ClientError> {
        let start = volume.stat(&self.job.path, true).await?;
        let mut walk = TreeWalk::new(volume, self.job.path.clone(), start);
        let mut tasks = JoinSet::new();
        while let Some(step) = walk.next().await {
            let found = match step {
                Ok(TreeStep::Enter(found)) => found,
                Ok(TreeStep::Leave(_)) => continue,
                Err(error) => {
                    note(progress, &Err(error));
                    continue;
                }
            };
            while tasks.len() >= FILES_AT_ONCE {
                tasks.join_next().await;
            }
            progress.lock().at.clone_from(&found.path);
            let (volume, progress) = (volume.clone(), progress.clone());
            tasks.spawn(async move {
                let outcome = volume.convert(found.attributes.inode, &found.path, layout).await;
                if let Err(error) = &outcome {
                    tracing::info!(path = %String::from_utf8_lossy(&found.path), %error, "not converted");
                }
                note(&progress, &outcome);
            });
        }
        while tasks.join_next().await.is_some() {}
        Ok(())
    }

    /// Returns when the job is not this node's any more.
    async fn report_regularly(&self, progress: &Mutex<JobProgress>) {
        let mut heard = Instant::now();
        loop {
            tokio::time::sleep(REPORT_PAUSE).await;
            let now = progress.lock().clone();
            match self.report(RUNNING, now, String::new()).await {
                Ok(true) => return,
                Ok(false) => heard = Instant::now(),
                Err(error) => tracing::debug!(job = self.job.id, %error, "a report was not taken"),
            }
            if heard.elapsed() > REPORT_PATIENCE {
                tracing::warn!(job = self.job.id, "the manager cannot be reached; the job is left to another server");
                return;
            }
        }
    }

    /// True: stop.
    async fn report(&self, state: u32, progress: JobProgress, message: String) -> Result<bool, ClientError> {
        let request = ReportJobRequest {
            job: self.job.id,
            node: self.node,
            incarnation: self.incarnation,
            state,
            progress: Some(progress),
            message,
        };
        let answer = self.client.manager::<ReportJobResponse>("reporting a job", Opcode::ReportJob, &request).await?;
        Ok(answer.stop)
    }
}

/// Counts what became of one thing. What is gone meanwhile needs no conversion.
fn note(progress: &Mutex<JobProgress>, outcome: &Result<Conversion, ClientError>) {
    let mut progress = progress.lock();
    progress.files_seen += 1;
    match outcome {
        Ok(Conversion::Done { bytes }) => {
            progress.files_done += 1;
            progress.bytes_done += bytes;
        }
        Ok(Conversion::Kept) => progress.files_kept += 1,
        Err(error) if error.is_not_found() || error.errno() == 116 => progress.files_kept += 1,
        Err(error) => {
            progress.files_failed += 1;
            progress.last_failure = error.to_string();
        }
    }
}
