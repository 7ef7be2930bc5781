//! Jobs over the wire: given to one server, taken over from a restarted one, cancelled by who may.
use super::cluster::{Managers, eventually};
use super::node::Node;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Credentials;
use cairn_wire::manager::*;

fn who(uid: u32) -> Option<Credentials> {
    Some(Credentials { uid, gid: uid, groups: Vec::new() })
}

/// A tree would be converted by two servers at once, or by none after a restart.
#[test]
fn a_job_has_one_server_at_a_time() {
    let managers = Managers::start(1, 1, 3);
    let nodes: Vec<Node> = (1..=3).map(|n| Node::start(&managers, n, "data", 1)).collect();
    let _meta = Node::start(&managers, 4, "meta", 0);
    eventually("the default volume", || (!managers.map().volumes.is_empty()).then_some(()));
    let start = |layout: u64| {
        let request = StartJobRequest { volume: 1, path: b"/a".to_vec(), layout, who: who(7) };
        managers.try_call::<JobResponse>(Opcode::StartJob, &request)
    };
    assert_eq!(start(5).expect_err("five copies on three disks").code(), Some(ErrorCode::NotEnoughDisks));
    assert!(start(1 << 60).is_err());
    let job = start(2).expect("accepted").job.expect("a job");
    for (path, free) in [("/a", false), ("/a/b", false), ("/", false), ("/ab", true)] {
        let request = StartJobRequest { volume: 1, path: path.into(), layout: 3, who: who(7) };
        let outcome = managers.try_call::<JobResponse>(Opcode::StartJob, &request);
        match outcome.map(|answer| answer.job.expect("a job").id) {
            Ok(beside) => {
                assert!(free, "{path}");
                let cancel = CancelJobRequest { job: beside, who: who(7) };
                managers.try_call::<JobResponse>(Opcode::CancelJob, &cancel).expect("cancelled");
            }
            Err(error) => {
                assert!(!free && error.code() == Some(ErrorCode::Conflict), "{path}: {error}");
                assert!(error.to_string().contains(&format!("job {} gives /a", job.id)), "{error}");
            }
        }
    }
    let take = |node: u32, incarnation: u64| {
        let request = TakeJobRequest { node, incarnation };
        managers.try_call::<JobResponse>(Opcode::TakeJob, &request).expect("answered").job
    };
    let (first, second) = (nodes[0].id(), nodes[1].id());
    assert_eq!(take(first, 1).map(|taken| taken.id), Some(job.id));
    assert_eq!(take(second, 1), None, "it has a server");
    let report = |node: u32, incarnation: u64, state: u32| {
        let progress = Some(JobProgress { files_done: 4, ..JobProgress::default() });
        let request = ReportJobRequest { job: job.id, node, incarnation, state, progress, message: String::new() };
        managers.try_call::<ReportJobResponse>(Opcode::ReportJob, &request).expect("answered").stop
    };
    assert!(!report(first, 1, 1));
    assert!(report(second, 1, 2), "not its job");
    assert_eq!(take(first, 2).map(|taken| taken.id), Some(job.id), "the same server after a restart");
    assert!(report(first, 1, 1), "the process before the restart stops");
    let cancel = |uid: u32| {
        let request = CancelJobRequest { job: job.id, who: who(uid) };
        managers.try_call::<JobResponse>(Opcode::CancelJob, &request)
    };
    assert_eq!(cancel(8).expect_err("another user").code(), Some(ErrorCode::NotPermitted));
    assert_eq!(cancel(7).expect("the owner").job.map(|job| job.state), Some(5), "its server works");
    assert!(report(first, 2, 1), "it is told to stop");
    assert_eq!(take(second, 1), None, "it is given to nobody else");
    assert!(!report(first, 2, 4), "it has stopped");
    let error = cancel(7).expect_err("it ended");
    assert_eq!(error.code(), Some(ErrorCode::Conflict));
    assert!(error.to_string().contains("nothing to cancel"), "{error}");
    assert!(report(first, 2, 2), "cancelled");
    let list: ListJobsResponse = managers.try_call(Opcode::ListJobs, &ListJobsRequest { job: 0 }).expect("listed");
    let done = |job: &Job| job.progress.as_ref().map_or(0, |progress| progress.files_done);
    assert_eq!(
        list.jobs.iter().map(|job| (job.id, job.state, done(job))).collect::<Vec<_>>(),
        [(job.id + 1, 4, 0), (job.id, 4, 4)]
    );
}
