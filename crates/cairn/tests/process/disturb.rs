//! Servers that die under a program and come back: a data node, the leader of the metadata, then both at once.
use crate::members::leader;
use crate::support::{Cluster, Shape};

/// One data node and one member of the metadata may be away.
pub const WITH_SPARE: Shape = Shape { managers: 1, metas: 3, datas: 4, racks: 4 };

/// Kills servers of a cluster of that shape and starts them again. `goes_on` waits until the program under which they
/// die has done something more.
pub fn disturb(cluster: &mut Cluster, goes_on: &mut dyn FnMut(&Cluster)) {
    cluster.kill("data2");
    goes_on(cluster);
    let first = leader(cluster);
    cluster.kill(&first);
    goes_on(cluster);
    cluster.restart("data2");
    cluster.restart(&first);
    cluster.wait_healthy();
    goes_on(cluster);
    let second = leader(cluster);
    cluster.kill("data3");
    cluster.kill(&second);
    goes_on(cluster);
    cluster.restart(&second);
    cluster.restart("data3");
    goes_on(cluster);
}
