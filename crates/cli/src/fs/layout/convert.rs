//! `cairn fs layout convert|jobs|cancel`: the servers give files another layout, contents included.
//!
//! A conversion is a job that the manager keeps and data nodes do; `convert` waits for it and shows how far it is, and
//! the job goes on without it.
use crate::context::Context;
use crate::entry::layout_text;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::fs::layout::encode::show_background;
use crate::human::{bytes, local_time};
use crate::output::put_name;
use crate::remote::{Found, expand_all};
use crate::report::{Done, Report};
use crate::table::{Align, Table};
use cairn_client::job::{Job, JobProgress, JobState};
use cairn_client::{Client, own_process};
use cairn_types::Layout;
use clap::Args;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(300);
/// A server that lives has stopped by then; one that does not is given up a little later.
const CANCEL_PATIENCE: Duration = Duration::from_secs(60);

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
    /// Numbers as `layout jobs` shows them; waits until they have stopped, what is converted stays converted
    #[arg(required = true)]
    jobs: Vec<u64>,
}

impl ConvertArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let layout = super::parse_layout(&self.layout)?;
        let report = context.report("converting", None);
        for found in expand_all(context, &self.paths, true, &report).await {
            if crate::at_snapshot::is_inside(&found.at, &found.attributes) {
                let text = format!(
                    "{}: a snapshot cannot be changed; convert what is there now, and delete the snapshot to get the space of the old layout back",
                    found.at
                );
                report.fail(&CliError::refused(Exit::Permission, text));
                continue;
            }
            if let Err(error) = start(context, &found, layout, self.background, &report).await {
                report.fail(&error);
            }
        }
        report.finish()
    }
}

/// Starts a job on a tree; waits for it unless it is to go on in the background.
pub(super) async fn start(
    context: &Context,
    found: &Found,
    layout: Layout,
    background: bool,
    report: &Report,
) -> Result<()> {
    let client = context.client_of(found.at.cluster.as_deref()).await?;
    let shown = found.at.to_string();
    let tree = (found.volume.id(), found.at.path.clone());
    let mut job = client.start_job(&shown, tree, layout, &own_process::credentials()).await?;
    if !background {
        let id = job.id;
        context.note_interrupt(format!(
            "job {id} goes on in the cluster: cairn fs layout jobs {id} follows it, cairn fs layout cancel {id} ends it"
        ));
        job = wait(&client, &shown, job, report).await?;
    }
    report.done(Done::File(0));
    show(context, &job, layout, background)
}

/// Polls until the job ends.
async fn wait(client: &Client, shown: &str, mut job: Job, report: &Report) -> Result<Job> {
    let mut seen = 0;
    loop {
        let progress = &job.progress;
        let written = progress.bytes_done + progress.bytes_under_way;
        report.progress().add_bytes(written.saturating_sub(seen));
        seen = seen.max(written);
        if let Some(of) = files_of(progress) {
            report.progress().note(format!(
                "{} of {of} files, {} to convert: ",
                progress.files_done,
                bytes_of(progress)
            ));
        }
        match job.state {
            state if state.is_live() => {}
            JobState::Done => return Ok(job),
            JobState::Failed => {
                let exit = if progress.files_done + progress.files_kept > 0 { Exit::Partial } else { Exit::Other };
                return Err(CliError::refused(exit, format!("{shown}: {}", job.message)));
            }
            _ => {
                let text = format!("{shown}: job {} was cancelled; what was converted stays so", job.id);
                return Err(CliError::refused(Exit::Interrupted, text));
            }
        }
        tokio::time::sleep(POLL).await;
        job = look(client, shown, job.id).await?;
    }
}

async fn look(client: &Client, shown: &str, id: u64) -> Result<Job> {
    client.job(shown, id).await?.ok_or_else(|| CliError::usage(format!("job {id} is gone")))
}

/// Files that the job will come to, as far as they are found; nothing of a server of an earlier version.
fn files_of(progress: &JobProgress) -> Option<String> {
    let more = if progress.total_known { "" } else { "+" };
    (progress.files_total > 0).then(|| format!("{}{more}", progress.files_total))
}

/// Bytes that are to be written anew, as far as they are found.
fn bytes_of(progress: &JobProgress) -> String {
    let more = if progress.total_known { "" } else { "+" };
    format!("{}{more}", bytes(progress.bytes_total.saturating_sub(progress.bytes_passed)))
}

/// `1.2 GiB of 3.0 GiB` of one that is worked on.
fn bytes_text(job: &Job, progress: &JobProgress) -> String {
    let written = bytes(progress.bytes_done + progress.bytes_under_way);
    match job.state.is_live() && progress.bytes_total > 0 {
        true => format!("{written} of {}", bytes_of(progress)),
        false => written,
    }
}

fn show(context: &Context, job: &Job, layout: Layout, background: bool) -> Result<()> {
    if context.out.is_json() {
        return context.out.json(&job_json(job));
    }
    if background {
        return context.out.line(format!("job {}", job.id));
    }
    let progress = &job.progress;
    let (done, kept, written) = (progress.files_done, progress.files_kept, bytes(progress.bytes_done));
    let text = match job.encodes() {
        true => format!(
            "{done} encoded ({written}), {} came back; {kept} had nothing to encode or stay copies",
            bytes(progress.bytes_freed)
        ),
        false => format!("{done} converted to {layout} ({written}), {kept} had it already"),
    };
    if context.args.quiet { Ok(()) } else { context.out.line(text) }
}

impl JobsArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let client = context.client().await?;
        let jobs = client.jobs(self.job).await?;
        if context.out.is_json() {
            jobs.iter().try_for_each(|job| context.out.json(&job_json(job)))?;
            return if self.job.is_none() { show_background(context).await } else { Ok(()) };
        }
        let mut table = Table::new(&[
            ("JOB", Align::Right),
            ("STATE", Align::Left),
            ("LAYOUT", Align::Left),
            ("DONE", Align::Right),
            ("OF", Align::Right),
            ("KEPT", Align::Right),
            ("FAILED", Align::Right),
            ("BYTES", Align::Right),
            ("NODE", Align::Right),
            ("STARTED", Align::Left),
            ("PATH", Align::Left),
        ]);
        for job in &jobs {
            let progress = &job.progress;
            table.row(vec![
                job.id.to_string(),
                job.state.name().to_owned(),
                if job.encodes() { "encode".into() } else { layout_text(job.layout) },
                progress.files_done.to_string(),
                files_of(progress).unwrap_or_else(|| "-".into()),
                progress.files_kept.to_string(),
                progress.files_failed.to_string(),
                bytes_text(job, progress),
                if job.node == 0 { "-".into() } else { format!("n{}", job.node) },
                local_time(job.created_ns),
                String::from_utf8_lossy(&context.out.name(&job.path)).into_owned(),
            ]);
        }
        table.print(&context.out)?;
        for job in jobs.iter().filter(|job| !job.message.is_empty()) {
            context.out.line(format!("job {}: {}", job.id, job.message))?;
        }
        if self.job.is_none() { show_background(context).await } else { Ok(()) }
    }
}

impl CancelArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let client = context.client().await?;
        let report = context.plain_report();
        for job in self.jobs {
            match cancel(context, &client, job).await {
                Ok(()) => report.done(Done::File(0)),
                Err(error) => report.fail(&error),
            }
        }
        report.finish()
    }
}

/// Waits until the server that works on it has stopped, and says what was done.
async fn cancel(context: &Context, client: &Client, id: u64) -> Result<()> {
    let shown = format!("job {id}");
    context.note_interrupt(format!("job {id} is being cancelled: cairn fs layout jobs {id} shows when it has ended"));
    let mut job = client.cancel_job(&shown, id, &own_process::credentials()).await?;
    let until = Instant::now() + CANCEL_PATIENCE;
    while job.state.is_live() && Instant::now() < until {
        tokio::time::sleep(POLL).await;
        job = look(client, &shown, id).await?;
    }
    if context.out.is_json() {
        return context.out.json(&job_json(&job));
    }
    let progress = &job.progress;
    let done = format!("{} converted ({})", progress.files_done, bytes(progress.bytes_done));
    let text = match job.state {
        JobState::Cancelled => format!("job {id} cancelled: {done}; what is converted stays so"),
        _ if job.state.is_live() => {
            format!(
                "job {id} is being cancelled, its server has not stopped yet; cairn fs layout jobs {id} shows when it has"
            )
        }
        _ => format!("job {id} had come to its end ({}): {done}", job.state.name()),
    };
    if context.args.quiet { Ok(()) } else { context.out.line(text) }
}

fn job_json(job: &Job) -> Value {
    let progress = &job.progress;
    let mut object = Map::new();
    object.insert("job".into(), json!(job.id));
    object.insert("state".into(), json!(job.state.name()));
    put_name(&mut object, "path", &job.path);
    object.insert("volume".into(), json!(job.volume));
    object.insert("layout".into(), json!(layout_text(job.layout)));
    object.insert("kind".into(), json!(if job.encodes() { "encode" } else { "convert" }));
    object.insert("bytes_freed".into(), json!(progress.bytes_freed));
    object.insert("node".into(), json!(job.node));
    object.insert("files_seen".into(), json!(progress.files_seen));
    object.insert("files_done".into(), json!(progress.files_done));
    object.insert("files_kept".into(), json!(progress.files_kept));
    object.insert("files_failed".into(), json!(progress.files_failed));
    object.insert("files_total".into(), json!(progress.files_total));
    object.insert("bytes_done".into(), json!(progress.bytes_done));
    object.insert("bytes_under_way".into(), json!(progress.bytes_under_way));
    object.insert("bytes_passed".into(), json!(progress.bytes_passed));
    object.insert("bytes_total".into(), json!(progress.bytes_total));
    object.insert("total_known".into(), json!(progress.total_known));
    put_name(&mut object, "at", &progress.at);
    object.insert("last_failure".into(), json!(progress.last_failure));
    object.insert("message".into(), json!(job.message));
    object.insert("created_ns".into(), json!(job.created_ns));
    object.insert("finished_ns".into(), json!(job.finished_ns));
    Value::Object(object)
}
