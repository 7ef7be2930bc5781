//! What is to be said of a state that is older than what it once gave.
use super::{Problems, names};
use crate::soft::Soft;
use crate::state::State;

pub(super) fn waiting(state: &State, soft: &Soft, out: &mut Problems) {
    if !state.waits() {
        return;
    }
    let place = |id: &cairn_types::NodeId| match state.node(*id).filter(|node| !node.address.is_empty()) {
        Some(node) => format!("{id} ({})", node.address),
        None => id.to_string(),
    };
    let next = if soft.awaited.is_empty() {
        "all of them have, it goes on in a moment".to_owned()
    } else {
        format!(
            "it waits for {}: start what does not run; what is lost for good is given up, with what only it knows, by `cairn admin manager \
             go-on --yes`",
            names(soft.awaited.iter().map(place))
        )
    };
    out.critical(format!(
        "the managers' state is older than what they once gave (it was restored from a copy): nothing is changed, and no client begins, \
         before all nodes have said what they know; {next}"
    ));
}
