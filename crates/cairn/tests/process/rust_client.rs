//! The example of the client library, on a cluster.
use crate::support::{Cluster, Shape};

#[path = "../../../client/examples/tour.rs"]
mod tour;

const SMALL: Shape = Shape { managers: 1, metas: 1, datas: 3, racks: 3 };

/// Whoever begins with the library would begin with a program that does not work.
#[test]
fn the_tour_does_what_it_says() {
    let _as_a_program: fn() = tour::main;
    let cluster = Cluster::start(SMALL);
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let addresses = cluster.address.split(',').map(str::to_owned).collect();
    let said = runtime.block_on(tour::tour(addresses)).expect("a tour");
    assert_eq!(said[..2], ["first\nsecond\n", "mode 600, 1 ns before 1970"]);
    assert!(said.contains(&"log is Regular of 13 bytes".to_owned()), "{said:?}");
    assert_eq!(cluster.ok(&["fs", "cat", "/tour-rust/log"]), "first\nsecond\n");
}
