//! `cairn fs layout convert|jobs|cancel`: the servers give files another layout, contents included.
//!
//! A conversion is a job that the manager keeps and data nodes do; `convert` waits for it and shows how far it is, and
//! the job goes on without it.
use crate::context::{Context, credentials};
use crate::entry::layout_text;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::human::{bytes, local_time};
use crate::output::put_name;
use crate::remote::expand_all;
use crate::report::Done;
use crate::table::{Align, Table};
use cairn_client::Client;
use cairn_types::Layout;
use cairn_wire::Opcode;
use cairn_wire::manager::{CancelJobRequest, Job, JobResponse, ListJobsRequest, ListJobsResponse, StartJobRequest};
use clap::Args;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(300);
/// Names of the states by their codes.
const STATES: [&str; 5] = ["queued", "running", "done", "failed", "cancelled"];
const DONE: u32 = 2;

#[derive(Args, Debug)]
pub struct ConvertArgs {
    /// Such as r3, rs-6-3 or r2x8/64k
    layout: String,
    /// Remote files, or directories with all that is below them
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Do not wait: print the number of the job and end
    #[arg(short, long)]
    background: bool,
}

#[derive(Args, Debug)]
pub struct JobsArgs {
    /// Only this one
    job: Option<u64>,
}

#[derive(Args, Debug)]
pub struct CancelArgs {
    /// Numbers as `layout jobs` shows them; what is converted stays converted
    #[arg(required = true)]
    jobs: Vec<u64>,
}

impl ConvertArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let layout = super::parse_layout(&self.layout)?;
        let report = context.report("converting", None);
        for found in expand_all(context, &self.paths, true, &report).await {
            let client = context.client_of(found.at.cluster.as_deref()).await?;
            let shown = found.at.to_string();
            let outcome = async {
                let request = StartJobRequest {
                    volume: found.volume.id(),
                    path: found.at.path.clone(),
                    layout: layout.to_bits(),
                    who: Some(credentials()),
                };
                let answer: JobResponse = client.manager(&shown, Opcode::StartJob, &request).await?;
                let job = answer.job.ok_or_else(|| CliError::usage("the manager answered without a job"))?;
                match self.background {
                    true => Ok(job),
                    false => wait(&client, &shown, job, &report).await,
                }
            };
            match outcome.await {
                Ok(job) => {
                    report.done(Done::File(0));
                    show(context, &job, layout, self.background)?;
                }
                Err(error) => report.fail(&error),
            }
        }
        report.finish()
    }
}

/// Polls until the job ends.
async fn wait(client: &Client, shown: &str, mut job: Job, report: &crate::report::Report) -> Result<Job> {
    let mut seen = 0;
    loop {
        let progress = job.progress.clone().unwrap_or_default();
        report.progress().add_bytes(progress.bytes_done.saturating_sub(seen));
        seen = seen.max(progress.bytes_done);
        match job.state {
            0 | 1 => {}
            DONE => return Ok(job),
            3 => {
                let exit = if progress.files_done + progress.files_kept > 0 { Exit::Partial } else { Exit::Other };
                return Err(CliError::refused(exit, format!("{shown}: {}", job.message)));
            }
            _ => {
                let text = format!("{shown}: job {} was cancelled; what was converted stays so", job.id);
                return Err(CliError::refused(Exit::Interrupted, text));
            }
        }
        tokio::time::sleep(POLL).await;
        let request = ListJobsRequest { job: job.id };
        let mut answer: ListJobsResponse = client.manager(shown, Opcode::ListJobs, &request).await?;
        job = answer.jobs.pop().ok_or_else(|| CliError::usage(format!("job {} is gone", job.id)))?;
    }
}

fn show(context: &Context, job: &Job, layout: Layout, background: bool) -> Result<()> {
    if context.out.is_json() {
        return context.out.json(&job_json(job));
    }
    if background {
        return context.out.line(format!("job {}", job.id));
    }
    let progress = job.progress.clone().unwrap_or_default();
    let text = format!(
        "{} converted to {layout} ({}), {} had it already",
        progress.files_done,
        bytes(progress.bytes_done),
        progress.files_kept
    );
    if context.args.quiet { Ok(()) } else { context.out.line(text) }
}

impl JobsArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let client = context.client().await?;
        let request = ListJobsRequest { job: self.job.unwrap_or(0) };
        let answer: ListJobsResponse = client.manager("jobs", Opcode::ListJobs, &request).await?;
        if context.out.is_json() {
            return answer.jobs.iter().try_for_each(|job| context.out.json(&job_json(job)));
        }
        let mut table = Table::new(&[
            ("JOB", Align::Right),
            ("STATE", Align::Left),
            ("LAYOUT", Align::Left),
            ("DONE", Align::Right),
            ("KEPT", Align::Right),
            ("FAILED", Align::Right),
            ("BYTES", Align::Right),
            ("NODE", Align::Right),
            ("STARTED", Align::Left),
            ("PATH", Align::Left),
        ]);
        for job in &answer.jobs {
            let progress = job.progress.clone().unwrap_or_default();
            table.row(vec![
                job.id.to_string(),
                state_name(job).to_owned(),
                layout_text(job.layout),
                progress.files_done.to_string(),
                progress.files_kept.to_string(),
                progress.files_failed.to_string(),
                bytes(progress.bytes_done),
                if job.node == 0 { "-".into() } else { format!("n{}", job.node) },
                local_time(job.created_ns),
                String::from_utf8_lossy(&context.out.name(&job.path)).into_owned(),
            ]);
        }
        table.print(&context.out)?;
        for job in answer.jobs.iter().filter(|job| !job.message.is_empty()) {
            context.out.line(format!("job {}: {}", job.id, job.message))?;
        }
        Ok(())
    }
}

impl CancelArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let client = context.client().await?;
        let report = context.plain_report();
        for job in self.jobs {
            let request = CancelJobRequest { job, who: Some(credentials()) };
            match client.manager::<JobResponse>(&format!("job {job}"), Opcode::CancelJob, &request).await {
                Ok(_) => report.done(Done::File(0)),
                Err(error) => report.fail(&error.into()),
            }
        }
        report.finish()
    }
}

fn state_name(job: &Job) -> &'static str {
    STATES.get(job.state as usize).copied().unwrap_or("unknown")
}

fn job_json(job: &Job) -> Value {
    let progress = job.progress.clone().unwrap_or_default();
    let mut object = Map::new();
    object.insert("job".into(), json!(job.id));
    object.insert("state".into(), json!(state_name(job)));
    put_name(&mut object, "path", &job.path);
    object.insert("volume".into(), json!(job.volume));
    object.insert("layout".into(), json!(layout_text(job.layout)));
    object.insert("node".into(), json!(job.node));
    object.insert("files_seen".into(), json!(progress.files_seen));
    object.insert("files_done".into(), json!(progress.files_done));
    object.insert("files_kept".into(), json!(progress.files_kept));
    object.insert("files_failed".into(), json!(progress.files_failed));
    object.insert("bytes_done".into(), json!(progress.bytes_done));
    put_name(&mut object, "at", &progress.at);
    object.insert("last_failure".into(), json!(progress.last_failure));
    object.insert("message".into(), json!(job.message));
    object.insert("created_ns".into(), json!(job.created_ns));
    object.insert("finished_ns".into(), json!(job.finished_ns));
    Value::Object(object)
}
