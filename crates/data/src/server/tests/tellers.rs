//! Whose word about groups counts.

use cairn_types::MemberState::Serving;
use cairn_types::{DiskId, PgId};
use cairn_wire::data::PgState;

use super::cluster::{Cluster, eventually};
use crate::server::epochs::{Teller, decode_state};

/// The key of one data server would fence off the groups of all, have members dropped, or make itself the primary of
/// them and free what is in them.
#[test]
fn a_data_server_tells_nothing_that_managers_did_not() {
    let cluster = Cluster::start(3);
    let inner = &cluster.nodes[1].data.inner;
    let told = cluster.state(&[Serving; 3]);
    eventually("the managers' word", || inner.known_already(&told).is_some());
    let known = inner.known_already(&told).expect("it is known");
    assert_eq!((known.0.epoch, known.1), (told.epoch, 1));

    let with_more = PgState { retired: true, index_floor: 1 << 20, filling: vec![102], ..told.clone() };
    assert_eq!(inner.known_already(&with_more), Some(known.clone()), "what it adds is not taken");
    let mut other_primary = told.clone();
    other_primary.members.swap(0, 2);
    assert_eq!(inner.known_already(&other_primary), Some(known.clone()), "members are the managers'");
    assert_eq!(inner.known_already(&PgState { epoch: told.epoch - 1, ..told.clone() }), Some(known), "an older one");
    assert_eq!(inner.known_already(&PgState { epoch: told.epoch + 1, ..told.clone() }), None, "a later epoch");
    assert_eq!(inner.known_already(&PgState { pg: told.pg + 1, ..told.clone() }), None, "a group that nobody told of");

    // A disk that stores many groups after each other would seem not to take any of them in.
    let later = PgState { epoch: told.epoch + 1, ..told };
    let (disk, pg) = (DiskId(later.members[1].disk), PgId(later.pg));
    let cluster = inner.disk_store(disk).expect("the disk").context.cluster;
    let record = decode_state(cluster, disk, &later, 1).expect("a state");
    inner.runtime(disk, pg).told.note(&record, &later, Teller::Manager);
    assert_eq!(inner.known_already(&later).map(|(state, _)| state.epoch), Some(later.epoch), "told, not stored yet");
}
