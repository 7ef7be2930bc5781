//! What is to be said of a state that is older than what it once gave.
use super::{Problems, names};
use crate::soft::Soft;
use crate::state::State;
use crate::take_up::Awaited;

pub(super) fn waiting(state: &State, soft: &Soft, out: &mut Problems) {
    if !state.waits() {
        return;
    }
    let place = |id: &cairn_types::NodeId| match state.node(*id).filter(|node| !node.address.is_empty()) {
        Some(node) => format!("{id} ({})", node.address),
        None => id.to_string(),
    };
    let missing = missing(&soft.awaited, place);
    let next = if missing.is_empty() {
        "all of them have, it goes on in a moment".to_owned()
    } else {
        format!(
            "it waits for {}: start what does not run; what is lost for good is given up, with what only it knows, by `cairn admin manager \
             go-on --yes`",
            missing.join(", and for ")
        )
    };
    out.critical(format!(
        "the managers' state is older than what they once gave (it was restored from a copy): nothing is changed, and no client begins, \
         before all nodes have said what they know; {next}"
    ));
}

fn missing(awaited: &Awaited, place: impl Fn(&cairn_types::NodeId) -> String) -> Vec<String> {
    let nodes = (!awaited.nodes.is_empty()).then(|| names(awaited.nodes.iter().map(place)));
    let disks = names(awaited.disks.iter().map(|disk| disk.to_string()));
    let disks = (!awaited.disks.is_empty()).then(|| format!("{disks}, which their nodes have not opened"));
    let groups = names(awaited.groups.iter().map(|pg| pg.to_string()));
    let groups = (!awaited.groups.is_empty()).then(|| {
        format!("somebody who knows where these placement groups are by now, of which no disk that is here has anything: {groups}")
    });
    nodes.into_iter().chain(disks).chain(groups).collect()
}
