//! Directories that get shards by themselves.
use cairn_types::ErrorCode;
use cairn_types::shard::shard_of;
use cairn_wire::Opcode;
use cairn_wire::meta::*;

use super::{User, start_with};
use crate::MetaTimings;
use crate::tests::fixture::{eventually, quick};

/// Entries with which a directory is huge here.
const HUGE: u64 = 40;

/// One directory would fill up its partition however many others there are; or every small one be strewn over all.
#[test]
fn a_huge_directory_gets_shards_by_itself() {
    let mut cluster = start_with(3, MetaTimings { shard_entries: HUGE, ..quick() });
    let mut user = User::new(&cluster, 7);
    let small = user.mkdir(1, "small", 0).expect("made");
    let huge = user.mkdir(1, "huge", 0).expect("made");
    for number in 0..HUGE - 1 {
        user.create(small, &format!("f{number}")).expect("made");
    }
    let mut number = 0;
    let mut refused = || {
        number += 1;
        user.create(huge, &format!("f{number}")).err()
    };
    eventually("new names go to shards", || refused() == Some(ErrorCode::Sharded));
    let seen = user.getattr(huge).expect("there");
    assert!(seen.shards == 2 && seen.size >= HUGE && seen.nlink == 2, "{seen:?}");
    assert_eq!(user.getattr(small).expect("there").shards, 0);
    let request =
        ReaddirRequest { header: user.header(super::owner(huge), 0), inode: huge, shards: true, ..Default::default() };
    let listed: ReaddirResponse = user.call(super::owner(huge), Opcode::Readdir, &request).expect("its shards");
    let shards: Vec<u64> = listed.entries.iter().map(|entry| entry.inode).collect();
    assert_eq!(shards.len(), 2);
    for name in ["one", "two", "three"] {
        let shard = shards[shard_of(name.as_bytes(), 2)];
        let file = user.create(shard, name).expect("made in the shard");
        assert_eq!(super::owner(file), super::owner(shard));
        assert_eq!(user.lookup(shard, name), Ok(file));
    }
    assert_eq!(user.rmdir(1, "huge"), Err(ErrorCode::NotEmpty));
    // Whoever leads after all have ended knows it, too.
    for node in 0..3 {
        cluster.kill(node);
        cluster.run(node);
        cluster.share_map();
    }
    let addresses = cluster.leader_client().addresses();
    user.leaders.values().for_each(|leader| leader.set_addresses(addresses.clone()));
    eventually("all are led again", || user.getattr(huge).is_ok_and(|seen| seen.shards == 2));
    assert_eq!(user.lookup(huge, "nothing"), Err(ErrorCode::Sharded));
}
