//! Tests of the trash against a cluster in memory.
use super::*;
use crate::connect::Client;
use crate::fake::FakeCluster;
use crate::file_writer::WriteOptions;
use cairn_types::{Layout, Scheme};

async fn start() -> (FakeCluster, Client, Volume) {
    let cluster = FakeCluster::start(3, &[Scheme::Replicated(3)]);
    let client = cluster.connect().await;
    let volume = client.volume("default").await.expect("the volume");
    (cluster, client, volume)
}

async fn make_file(volume: &Volume, path: &[u8]) {
    let layout: Layout = "r3".parse().expect("a layout");
    let options = WriteOptions { mode: 0o644, mtime_ns: 77, layout, exclusive: false, owner: None };
    volume.write(path, options).await.expect("begun").finish().await.expect("made");
}

/// A file could be moved into the trash again and again, or be taken for one that is in it.
#[test]
fn paths_of_the_trash() {
    assert!(is_in_trash(b"/.trash") && is_in_trash(b"/.trash/0/x"));
    assert!(!is_in_trash(b"/.trashy") && !is_in_trash(b"/a/.trash") && !is_in_trash(b"/"));
    assert_eq!(above(b"/a/b"), b"/a");
    assert_eq!(above(b"/a"), b"/");
}

/// What is kept "for ever" would be in a bucket that nobody knows as one: not listed, not restored, not emptied; or the
/// program would end in an overflow.
#[tokio::test]
async fn whatever_is_kept_very_long_is_found_again() {
    let (_cluster, _client, volume) = start().await;
    for (seconds, path) in [(u64::MAX, b"/a"), (1 << 40, b"/b")] {
        make_file(&volume, path).await;
        assert!(Trash::new(&volume, Duration::from_secs(seconds)).put(path).await.expect("put"));
    }
    let trash = Trash::new(&volume, Duration::ZERO);
    let found = trash.list(false).await.expect("listed");
    let paths: Vec<&[u8]> = found.iter().map(|one| one.path.as_slice()).collect();
    assert_eq!(paths, [b"/a", b"/b"]);
    trash.restore(&found[0], None).await.expect("restored");
    volume.stat(b"/a", false).await.expect("it is back");
}

/// Two who empty a trash, or one who does it when the time of a bucket is over, would stop in the middle of it.
#[tokio::test]
async fn what_somebody_else_removed_is_no_failure() {
    let (cluster, _client, volume) = start().await;
    let trash = Trash::new(&volume, Duration::from_secs(3600));
    for number in 0..200 {
        let path = format!("/f{number}");
        make_file(&volume, path.as_bytes()).await;
        assert!(trash.put(path.as_bytes()).await.expect("put"));
    }
    let all = trash.list(false).await.expect("listed");
    let numbers: Vec<&[u8]> = all.iter().map(|one| one.path.as_slice()).collect();
    assert_eq!((numbers.len(), numbers[0], numbers[199]), (200, &b"/f0"[..], &b"/f199"[..]), "oldest first");
    assert_eq!(trash.remove_all(&all[..50]).await.expect("removed"), 50);
    assert_eq!(trash.remove_all(&all).await.expect("removed"), 150);
    assert_eq!(trash.remove_all(&all).await.expect("nothing is left"), 0);
    assert_eq!(trash.list(false).await.expect("listed").len(), 0);
    cluster.check_namespace();
}

/// A file below a quota of another partition than the trash's could be neither replaced nor removed by command; or what
/// was replaced would be lost, or the new file be left beside it.
#[tokio::test]
async fn what_a_quota_of_another_partition_counts_is_replaced_and_kept() {
    let cluster = FakeCluster::start(3, &[Scheme::Replicated(3)]).across(3);
    let client = cluster.connect().await;
    let volume = client.volume("default").await.expect("the volume");
    let directory = volume.mkdir_in(b"/q", 0o755, 0, 2).await.expect("made").inode;
    volume.set_quota(directory, b"/q", 0, 100).await.expect("set");
    let trash = Trash::new(&volume, Duration::from_secs(3600));
    assert!(trash.is_far(b"/q/f").await.expect("known") && !trash.is_far(b"/f").await.expect("known"));
    let replace = async || {
        let layout: Layout = "r3".parse().expect("a layout");
        let options = WriteOptions { mode: 0o640, mtime_ns: 78, layout, exclusive: false, owner: None };
        volume.write(b"/q/f", options).await.expect("begun").finish_keeping(Some(&trash)).await
    };
    let names = async || trash.names(b"/q").await.expect("listed");
    make_file(&volume, b"/q/f").await;
    let old = volume.stat(b"/q/f", false).await.expect("there").inode;

    // Members of before do not move it away.
    let refused = replace().await.expect_err("the trash cannot keep it");
    assert!(refused.to_string().contains("feature level 24"), "{refused}");
    assert_eq!((volume.stat(b"/q/f", false).await.expect("there").inode, names().await), (old, vec![b"f".to_vec()]));
    assert_eq!(trash.put(b"/q/f").await.expect_err("nor this").code(), Some(ErrorCode::CrossVolume));

    cluster.fake.state.lock().set_feature_levels(24);
    let (made, replaced) = replace().await.expect("replaced");
    assert!(replaced && made.inode != old);
    assert_eq!(
        (volume.stat(b"/q/f", false).await.expect("there").inode, names().await),
        (made.inode, vec![b"f".to_vec()])
    );
    let kept = trash.list(false).await.expect("listed");
    assert_eq!((kept.len(), kept[0].attributes.inode, kept[0].path.as_slice()), (1, old, &b"/q/f"[..]));
    assert!(trash.put(b"/q/f").await.expect("moved"));
    let quota = volume.quota(directory, b"/q").await.expect("known").expect("it has one");
    assert_eq!((quota.inodes_used, names().await.len()), (0, 0));
    let refused = trash.restore(&kept[0], None).await.expect_err("it would have to be counted there");
    assert!(refused.to_string().contains("cairn fs cp") && refused.to_string().contains("/.trash/"), "{refused}");
    trash.restore(&kept[0], Some(b"/back")).await.expect("where no quota counts");
}
