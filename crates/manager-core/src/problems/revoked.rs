//! Names of revoked keys that nodes were told, and the managers have forgotten: their state was restored or made anew.
use super::Problems;
use crate::soft::Soft;
use crate::state::State;

pub(super) fn forgotten(state: &State, soft: &Soft, out: &mut Problems) {
    let known = state.revoked().count();
    let most = soft.revoked.iter().max_by_key(|(_, (_, kept))| *kept);
    if let Some((node, (_, kept))) = most.filter(|(_, (_, kept))| *kept as usize > known) {
        out.warning(format!(
            "the managers know {known} names of revoked keys, and {node} was told {kept}: their state was put back or made anew; servers that \
             are new serve the others. Give the names again: `cairn admin key revoke NAME …`, with those of the file revoked.told in the \
             directory of {node}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::{NodeId, WallTime};

    /// Keys that were taken away would count again at new servers, and nobody would know.
    #[test]
    fn what_the_managers_forgot_is_told() {
        let (mut state, mut soft) = (State::default(), Soft::default());
        let told = |state: &State, soft: &Soft| {
            let mut out = Problems::default();
            forgotten(state, soft, &mut out);
            out.texts()
        };
        soft.revoked.insert(NodeId(16), (7, 1));
        soft.revoked.insert(NodeId(17), (9, 2));
        state.revoked.insert("alice".to_owned(), WallTime(1));
        let said = told(&state, &soft);
        assert!(said.len() == 1 && said[0].contains("1 names of revoked keys, and n17 was told 2"), "{said:?}");
        state.revoked.insert("bob".to_owned(), WallTime(1));
        assert!(told(&state, &soft).is_empty());
    }
}
