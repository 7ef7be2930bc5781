//! One job: the tree is walked, some files at a time are converted, the manager is told how far it is.
use crate::count::Count;
use crate::encode::Batch;
use crate::{FILES_AT_ONCE, FIRST_REPORT, REPORT_PATIENCE, REPORT_PAUSE, STOP_PATIENCE};
use cairn_client::attributes::Attributes;
use cairn_client::job::{Job, JobProgress, JobServer, JobState};
use cairn_client::{Client, ClientError, TreeStep, TreeWalk, Volume};
use cairn_types::Layout;
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A job that this node has.
pub(crate) struct Running {
    pub client: Client,
    pub job: Job,
    pub server: JobServer,
}

/// How a job ended here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Done,
    Failed,
    /// It was cancelled, or is another server's now.
    Stopped,
}

/// Why a job is not worked on any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    /// The manager says so: it was cancelled, or another server has it.
    Told,
    /// No report was taken for too long.
    Unheard,
}

impl Running {
    /// Works until the job is done or taken away.
    pub(crate) async fn run(&self) -> End {
        let count = Arc::new(Count::default());
        let outcome = {
            let work = self.work(&count);
            tokio::pin!(work);
            tokio::select! {
                outcome = &mut work => Some(outcome),
                why = self.report_regularly(&count) => {
                    count.stop();
                    if why == Why::Unheard {
                        return End::Stopped;
                    }
                    // Files that get their new contents just now are still counted.
                    if tokio::time::timeout(STOP_PATIENCE, work).await.is_err() {
                        tracing::warn!(job = self.job.id, "files that are worked on are left as they are");
                    }
                    None
                }
            }
        };
        let last = count.progress();
        let (end, state, message) = match outcome {
            None => (End::Stopped, JobState::Cancelled, String::new()),
            Some(Err(error)) => (End::Failed, JobState::Failed, error.to_string()),
            Some(Ok(())) if last.files_failed > 0 => {
                let text = format!(
                    "{} of {} could not be converted and are as they were, the last: {}; start the job again when the \
                     cause is mended, what is converted is passed over",
                    last.files_failed, last.files_seen, last.last_failure
                );
                (End::Failed, JobState::Failed, text)
            }
            Some(Ok(())) => (End::Done, JobState::Done, String::new()),
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

    async fn work(&self, count: &Arc<Count>) -> Result<(), ClientError> {
        let shown = String::from_utf8_lossy(&self.job.path).into_owned();
        let layout = Layout::from_bits(self.job.layout)
            .ok_or_else(|| ClientError::protocol(&shown, "the job has a layout of a later version"))?;
        let volume = self.volume(&shown).await?;
        let start = volume.stat(&self.job.path, true).await;
        let outcome = match start {
            Ok(start) => {
                let scout = tokio::spawn(look_ahead(volume.clone(), self.job.path.clone(), start, count.clone()));
                self.walk(&volume, layout, start, count).await;
                scout.abort();
                Ok(())
            }
            Err(error) => Err(error),
        };
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

    async fn walk(&self, volume: &Volume, layout: Layout, start: Attributes, count: &Arc<Count>) {
        let mut walk = TreeWalk::new(volume, self.job.path.clone(), start);
        let (mut tasks, mut batch) = (JoinSet::new(), Batch::new(self.job.who.uid));
        while let Some(step) = walk.next().await {
            let found = match step {
                Ok(TreeStep::Enter(found)) => found,
                Ok(TreeStep::Leave(_)) => continue,
                Err(error) => {
                    count.not_seen(&error);
                    continue;
                }
            };
            while tasks.len() >= FILES_AT_ONCE {
                tasks.join_next().await;
            }
            if count.is_stopped() {
                break;
            }
            if layout.stage().is_encoded() {
                if batch.push(found) {
                    batch.encode(volume, count).await;
                }
                continue;
            }
            let (volume, count) = (volume.clone(), count.clone());
            tasks.spawn(async move {
                let begun = count.begin(&found);
                let outcome = volume.convert(found.attributes.inode, &found.path, layout, &begun.control).await;
                count.end(&begun, &found.path, &outcome);
            });
        }
        batch.encode(volume, count).await;
        while tasks.join_next().await.is_some() {}
    }

    /// Returns when the job is to be stopped, or is not this node's any more.
    async fn report_regularly(&self, count: &Count) -> Why {
        let (mut heard, mut pause) = (Instant::now(), FIRST_REPORT);
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(REPORT_PAUSE);
            match self.report(JobState::Running, count.progress(), String::new()).await {
                Ok(true) => return Why::Told,
                Ok(false) => heard = Instant::now(),
                Err(error) => tracing::debug!(job = self.job.id, %error, "a report was not taken"),
            }
            if heard.elapsed() > REPORT_PATIENCE {
                tracing::warn!(job = self.job.id, "the manager cannot be reached; the job is left to another server");
                return Why::Unheard;
            }
        }
    }

    /// True: stop.
    async fn report(&self, state: JobState, progress: JobProgress, message: String) -> Result<bool, ClientError> {
        self.client.report_job(self.server, (self.job.id, state), progress, message).await
    }
}

/// Finds what the job will come to, so that it can be told how much is left.
async fn look_ahead(volume: Volume, path: Vec<u8>, start: Attributes, count: Arc<Count>) {
    let mut walk = TreeWalk::new(&volume, path, start);
    while let Some(step) = walk.next().await {
        if count.is_stopped() {
            return;
        }
        if let Ok(TreeStep::Enter(found)) = step {
            count.found(&found);
        }
    }
    count.total_known();
}
