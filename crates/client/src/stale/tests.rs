//! Who is asked when the leader does not answer, with and without leave to take old answers.
use super::*;
use crate::error::ClientError;
use crate::fake::FakeCluster;
use cairn_types::{ErrorCode, Scheme};

const PATIENCE: Duration = Duration::from_secs(30);

fn calls(cluster: &FakeCluster, name: &str) -> u64 {
    cluster.fake.state.lock().calls.get(name).copied().unwrap_or(0)
}

/// A program would work with names of before without having been told.
#[tokio::test(start_paused = true)]
async fn without_leave_nobody_else_is_asked() {
    let cluster = FakeCluster::local(1, &[Scheme::Replicated(1)]);
    let client = cluster.connect_local_for(PATIENCE).await;
    let volume = client.volume("default").await.expect("the volume");
    cluster.fake.state.lock().leaderless_for = Some(1_500);
    let error = volume.stat(b"/", true).await.expect_err("nobody leads");
    assert!(matches!(error, ClientError::NoLeader { stale_tried: false, .. }), "{error}");
    assert!(error.to_string().contains("--stale-ok") && error.errno() == 110, "{error}");
    assert_eq!((calls(&cluster, "ReadStale"), client.staleness()), (0, None));
}

/// Whoever looks for the cause would be sent back to the command that has just failed.
#[test]
fn without_a_leading_manager_it_is_said_who_answers() {
    let last = "10.0.0.1:7400: it does not lead; 10.0.0.2:7400: nobody listens".to_owned();
    let of = |group: &str| ClientError::NoLeader {
        what: "cluster c".into(),
        group: group.into(),
        seconds: 30,
        last: last.clone(),
        stale_tried: false,
    };
    let text = of(crate::error::MANAGERS).to_string();
    assert!(text.contains("10.0.0.2:7400: nobody listens") && text.contains("start those"), "{text}");
    assert!(!text.contains("admin status") && of("partition p1").to_string().contains("admin status"), "{text}");
}

/// Reads would wait for a leader that does not come, or not say that what they give is old.
#[tokio::test(start_paused = true)]
async fn with_leave_another_one_answers_and_the_age_is_told() {
    let cluster = FakeCluster::local(1, &[Scheme::Replicated(1)]);
    let client = cluster.connect_local_stale(PATIENCE, StaleReads::default()).await;
    let volume = client.volume("default").await.expect("the volume");
    volume.mkdir(b"/d", 0o755, 0).await.expect("a directory");
    assert!(volume.stat(b"/d", true).await.is_ok() && client.staleness().is_none(), "the leader answers");
    assert_eq!(calls(&cluster, "ReadStale"), 0);
    cluster.fake.state.lock().leaderless_for = Some(1_500);
    let started = tokio::time::Instant::now();
    volume.stat(b"/d", true).await.expect("an old answer");
    assert!(started.elapsed() >= LEADER_PATIENCE, "an election is waited for");
    let told = client.staleness().expect("told");
    assert_eq!(told.age, Duration::from_millis(1_500));
    assert!(told.sources.contains_key("partition p1"), "{told:?}");
    // Who answered is asked at once from now on, and errors come from it as well.
    let (before, started) = (calls(&cluster, "Resolve"), tokio::time::Instant::now());
    let missing = volume.stat(b"/e", true).await.expect_err("it is not there");
    assert_eq!(missing.code(), Some(ErrorCode::NotFound));
    assert!(started.elapsed() < LEADER_PATIENCE && calls(&cluster, "Resolve") == before);
    // Changes need the leader.
    assert!(volume.mkdir(b"/f", 0o755, 0).await.is_err());
    // It is looked for again after a while.
    cluster.fake.state.lock().leaderless_for = None;
    tokio::time::sleep(LOOK_AGAIN).await;
    volume.mkdir(b"/f", 0o755, 0).await.expect("the leader is back");
    let before = calls(&cluster, "ReadStale");
    volume.stat(b"/f", true).await.expect("a new answer");
    assert_eq!(calls(&cluster, "ReadStale"), before);
}

/// A limit on the age would be no limit.
#[tokio::test(start_paused = true)]
async fn what_is_too_old_is_not_taken() {
    let cluster = FakeCluster::local(1, &[Scheme::Replicated(1)]);
    let allowed = StaleReads { age_max: Some(Duration::from_secs(1)) };
    let client = cluster.connect_local_stale(PATIENCE, allowed).await;
    let volume = client.volume("default").await.expect("the volume");
    cluster.fake.state.lock().leaderless_for = Some(1_500);
    let error = volume.stat(b"/", true).await.expect_err("too old");
    assert!(matches!(error, ClientError::NoLeader { stale_tried: true, .. }), "{error}");
    cluster.fake.state.lock().leaderless_for = Some(900);
    assert!(volume.stat(b"/", true).await.is_ok());
}
