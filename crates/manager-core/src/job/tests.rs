//! Jobs: who may report, what is kept, what a checkpoint gives back.
use super::*;
use crate::apply::tests::{cluster, ok, refused};
use crate::checkpoint;
use crate::command::Command;

fn start(path: &str) -> Command {
    Command::StartJob(StartJob { volume: 1, path: path.into(), layout: 3, uid: 7, gid: 8, groups: vec![9] })
}

fn started(state: &mut State, path: &str) -> u64 {
    match ok(state, start(path)) {
        Outcome::Job(id) => id,
        other => panic!("{other:?}"),
    }
}

fn assign(job: u64, from: u32, node: u32) -> Command {
    Command::AssignJob(AssignJob { job, from, node, incarnation: 5 })
}

fn report(job: u64, node: u32, state: JobState) -> Command {
    let progress = Some(JobProgress { files_done: 3, ..JobProgress::default() });
    Command::ReportJob(ReportJob { job, node, incarnation: 5, state: state as u32, progress, message: "m".into() })
}

/// Two servers would work on one job, or a slow one would overwrite what its successor said.
#[test]
fn only_the_server_that_has_a_job_reports_it() {
    let mut state = cluster(3);
    let id = started(&mut state, "/a");
    refused(&mut state, report(id, 16, JobState::Done));
    ok(&mut state, assign(id, 0, 16));
    refused(&mut state, assign(id, 0, 17));
    ok(&mut state, assign(id, 16, 17));
    refused(&mut state, report(id, 16, JobState::Done));
    refused(&mut state, report(id, 17, JobState::Queued));
    ok(&mut state, report(id, 17, JobState::Running));
    ok(&mut state, report(id, 17, JobState::Done));
    let job = state.job(id).expect("kept");
    assert_eq!((job.state, job.progress.files_done, job.who.uid), (JobState::Done, 3, 7));
    assert!(job.finished.0 > 0);
    refused(&mut state, assign(id, 17, 16));
}

fn cancel(job: u64) -> Command {
    Command::CancelJob(CancelJob { job, silent: false })
}

/// A job would be called ended while files go on being converted, or what was done of it would be forgotten.
#[test]
fn a_running_job_is_cancelled_when_its_server_has_stopped() {
    let mut state = cluster(3);
    let id = started(&mut state, "/a");
    refused(&mut state, report(id, 16, JobState::Cancelled));
    ok(&mut state, assign(id, 0, 16));
    refused(&mut state, report(id, 16, JobState::Cancelled));
    ok(&mut state, cancel(id));
    let is = |state: &State| state.job(id).map(|job| (job.state, job.progress.files_done, job.finished.0 > 0));
    assert_eq!(is(&state), Some((JobState::Cancelling, 0, false)));
    refused(&mut state, assign(id, 16, 17));
    ok(&mut state, report(id, 16, JobState::Running));
    ok(&mut state, cancel(id));
    assert_eq!(is(&state), Some((JobState::Cancelling, 3, false)));
    refused(&mut state, report(id, 17, JobState::Cancelled));
    ok(&mut state, report(id, 16, JobState::Cancelled));
    assert_eq!(is(&state), Some((JobState::Cancelled, 3, true)));
    refused(&mut state, report(id, 16, JobState::Done));
    refused(&mut state, cancel(id));
    refused(&mut state, cancel(99));
}

/// A job whose server died would be "being cancelled" for ever; one that nobody has, or that came to its end, as well.
#[test]
fn a_cancelled_job_ends_without_its_server() {
    let mut state = cluster(3);
    let ids: Vec<u64> = (0..3).map(|_| started(&mut state, "/a")).collect();
    ok(&mut state, cancel(ids[0]));
    for id in &ids[1..] {
        ok(&mut state, assign(*id, 0, 16));
        ok(&mut state, cancel(*id));
    }
    ok(&mut state, Command::CancelJob(CancelJob { job: ids[1], silent: true }));
    ok(&mut state, report(ids[2], 16, JobState::Done));
    let states: Vec<_> = state.jobs().map(|job| job.state).collect();
    assert_eq!(states, [JobState::Cancelled, JobState::Cancelled, JobState::Done]);
}

/// The manager's memory would grow with every job that anybody ever started.
#[test]
fn jobs_are_bounded() {
    let mut state = cluster(3);
    for _ in 0..LIVE_MAX {
        started(&mut state, "/a");
    }
    refused(&mut state, start("/b"));
    for round in 0..3 {
        let live: Vec<u64> = state.jobs().filter(|job| job.state.is_live()).map(|job| job.id).collect();
        for id in live {
            ok(&mut state, cancel(id));
        }
        if round < 2 {
            for _ in 0..LIVE_MAX {
                started(&mut state, "/a");
            }
        }
    }
    assert_eq!(state.jobs().count(), KEPT_MAX);
}

/// One tenant would keep all others from jobs, and have his done before theirs.
#[test]
fn a_volume_has_a_part_of_the_jobs_and_its_turn() {
    let mut state = cluster(3);
    let other = crate::command::CreateVolume { name: "other".into(), layout: 1, ..Default::default() };
    let Outcome::Volume(other) = ok(&mut state, Command::CreateVolume(other)) else { panic!("a volume") };
    let first = started(&mut state, "/a");
    assert_eq!(state.next_queued().map(|job| job.id), Some(first));
    for _ in 1..LIVE_OF_VOLUME_MAX {
        assert_eq!(state.too_many_jobs(VolumeId(1)), None);
        started(&mut state, "/a");
    }
    assert_eq!(state.too_many_jobs(VolumeId(1)).map(|error| error.code), Some(ErrorCode::Overloaded));
    assert_eq!(state.too_many_jobs(other), None);
    ok(&mut state, assign(first, 0, 16));
    let theirs = StartJob { volume: other.get(), path: b"/b".to_vec(), layout: 3, uid: 7, gid: 8, groups: vec![] };
    let Outcome::Job(theirs) = ok(&mut state, Command::StartJob(theirs)) else { panic!("a job") };
    assert_eq!(state.next_queued().map(|job| job.id), Some(theirs), "none of theirs runs");
    ok(&mut state, assign(theirs, 0, 17));
    assert_eq!(state.next_queued().map(|job| job.volume), Some(VolumeId(1)));
}

#[test]
fn jobs_survive_a_checkpoint() {
    let mut state = cluster(3);
    let id = started(&mut state, "/a");
    ok(&mut state, assign(id, 0, 16));
    ok(&mut state, report(id, 16, JobState::Running));
    let mut reader = checkpoint::Reader::new();
    checkpoint::write(&state, |piece| reader.feed(piece)).expect("written and read");
    assert_eq!(reader.finish().expect("a state"), state);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut state = cluster(3);
    let bad = |change: fn(&mut StartJob)| {
        let mut job = StartJob { volume: 1, path: b"/a".to_vec(), layout: 3, ..StartJob::default() };
        change(&mut job);
        Command::StartJob(job)
    };
    refused(&mut state, bad(|job| job.volume = 99));
    refused(&mut state, bad(|job| job.layout = 0));
    refused(&mut state, bad(|job| job.path.clear()));
    refused(&mut state, bad(|job| job.path = vec![b'a'; 5000]));
}
