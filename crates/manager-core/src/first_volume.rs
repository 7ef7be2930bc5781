//! What a new cluster's first volume waits for, and volumes with less redundancy of their names than they could have.
//!
//! The first volume is made by itself, at a moment when machines are being started one after the other. So it waits for
//! as many nodes as the settings want: a volume that was made for the two nodes that happened to be first would keep
//! all that is stored later on one disk, and nobody would know. Not here: making it (the `manager` crate).
use crate::config::Key;
use crate::items::{Node, Partition, Roles};
use crate::partition_members::successors;
use crate::problems::Problems;
use crate::problems::partitions::{PARTITIONS_NAMED, named};
use crate::soft::Soft;
use crate::state::State;
use crate::wording::names_up_to;
use cairn_types::NodeId;
use std::collections::BTreeSet;

/// Nodes named in one line.
const NAMED_MAX: usize = 4;

/// Why the first volume is not made by itself now, in words; `None`: nothing is missing, or there was one.
pub fn waits_for(state: &State) -> Option<String> {
    if state.had_volumes() || state.cluster().is_none() {
        return None;
    }
    let layout = state.config().default_layout();
    let able = state.disks().filter(|disk| state.is_able(disk.id));
    // Copies need nodes, shards disks.
    let disks = state.disks().filter(|disk| state.is_able(disk.id)).count();
    let later = layout.staged().map(|later| later.members()).filter(|members| disks < *members);
    let data = match layout.scheme().is_replicated() {
        _ if later.is_some() => disks,
        true => able.map(|disk| disk.node).collect::<BTreeSet<_>>().len(),
        false => able.count(),
    };
    let metas = state.nodes().filter(|node| node.up && node.roles.has(Roles::META)).count();
    // Who has one manager may want one of everything.
    let managers = state.nodes().filter(|node| node.roles.has(Roles::MANAGER)).count();
    let metas_wanted = if managers > 1 { state.config().number(Key::MetaMembers) as usize } else { 1 };
    // What files are encoded to needs as many disks as if they were written so.
    let data_wanted = later.unwrap_or(layout.scheme().members());
    if data >= data_wanted && metas >= metas_wanted {
        return None;
    }
    let what = if layout.scheme().is_replicated() && later.is_none() { "data nodes" } else { "disks" };
    Some(format!(
        "there is no volume yet: \"default\" is made when {data_wanted} {what} run, for layout {layout} (default_layout; {data} now), and \
         {metas_wanted} meta nodes (meta_members; {metas} now); start them, or say that fewer will do: `cairn admin volume create default \
         --layout r1` makes one for what is there"
    ))
}

/// Why a volume should not be made now: its names would be on fewer nodes than the settings want, and for ever.
pub fn too_few_metas(state: &State) -> Option<String> {
    let wanted = state.config().number(Key::MetaMembers) as usize;
    let (up, down): (Vec<&Node>, Vec<&Node>) =
        state.servers().filter(|node| node.roles.has(Roles::META)).partition(|node| node.up);
    (up.len() < wanted && up.len() + down.len() >= wanted).then(|| {
        format!(
            "only {} of {} meta nodes run, and the names of a volume are to be on {wanted} (meta_members): start {}, or let fewer do with \
             `cairn admin config set meta_members=1`",
            up.len(),
            up.len() + down.len(),
            names_up_to(NAMED_MAX, down.iter().map(|node| node.id.to_string()))
        )
    })
}

/// Partitions that have fewer members than they should although there are nodes for more.
pub(crate) fn thin_partitions(state: &State, soft: &Soft, out: &mut Problems) {
    let wanted = state.config().number(Key::MetaMembers) as usize;
    let metas: Vec<&Node> = state.servers().filter(|node| node.up && node.roles.has(Roles::META)).collect();
    let free = |p: &Partition| metas.iter().filter(|node| !p.members.contains(&node.id)).count();
    let settled = state.partitions().filter(|p| !p.removed && p.target.is_empty() && p.members.len() < wanted);
    let thin: Vec<&Partition> = settled.filter(|p| free(p) >= wanted - p.members.len()).collect();
    for partition in thin.iter().take(PARTITIONS_NAMED) {
        let lacks = wanted - partition.members.len();
        let next = match successors(state, soft, partition, &partition.members, &[], lacks) {
            Ok(mut nodes) => {
                nodes.sort_unstable();
                let nodes: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
                format!("`cairn admin partition add {} {}`", partition.id.get(), nodes.join(" "))
            }
            Err(error) => error.message,
        };
        let members = names_up_to(NAMED_MAX, partition.members.iter().map(|node| node.to_string()));
        out.warning(format!(
            "{} keeps its names on {members} only, and there are nodes for {wanted} members (meta_members): fewer losses \
             than that make the volume unusable or lost; {next}",
            named(state, partition)
        ));
    }
    let more = thin.len().saturating_sub(PARTITIONS_NAMED);
    if more > 0 {
        out.warning(format!(
            "{more} more partitions have fewer than {wanted} members (meta_members) although there are nodes for them: `cairn admin \
             partition ls`, then `cairn admin partition add`"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::tests::{empty_cluster, ok, register};
    use crate::command::{
        Command, ConfigValue, CreateVolume, NodeAt, NodesDown, PutManager, SetConfig, SetPartitionMembers,
    };

    fn empty(managers: u32) -> State {
        let mut state = empty_cluster();
        for node in 1..=managers {
            let address = format!("m{node}:1");
            ok(&mut state, Command::PutManager(PutManager { node, address, ..PutManager::default() }));
        }
        state
    }

    fn add(state: &mut State, numbers: std::ops::Range<u32>, roles: Roles) {
        for number in numbers {
            ok(state, Command::Register(register(number, roles, u32::from(roles.has(Roles::DATA)))));
        }
    }

    /// Everything that is ever stored would have one copy, because of the order in which machines were started.
    #[test]
    fn the_first_volume_waits_for_the_copies_that_it_is_to_have() {
        let mut state = empty(3);
        add(&mut state, 0..1, Roles::META);
        add(&mut state, 1..3, Roles::DATA);
        let said = waits_for(&state).expect("two of three");
        assert!(said.contains("3 data nodes run, for layout r3 (default_layout; 2 now)"), "{said}");
        assert!(said.contains("3 meta nodes (meta_members; 1 now)"), "{said}");
        add(&mut state, 3..4, Roles::DATA);
        assert!(waits_for(&state).is_some(), "one meta node of three");
        add(&mut state, 4..6, Roles::META);
        assert_eq!(waits_for(&state), None);

        // Who has one manager may want one meta node, but never fewer copies.
        let mut state = empty(1);
        add(&mut state, 0..1, Roles::META);
        add(&mut state, 1..2, Roles::DATA);
        assert!(waits_for(&state).is_some());
        let items = vec![ConfigValue { key: "default_layout".into(), value: "r1".into() }];
        ok(&mut state, Command::SetConfig(SetConfig { items }));
        assert_eq!(waits_for(&state), None);
    }

    /// A volume that is made while a machine restarts would have its names on one machine for ever.
    #[test]
    fn no_volume_is_made_with_fewer_members_because_one_is_down() {
        let mut state = empty(1);
        add(&mut state, 0..2, Roles::META);
        assert_eq!(too_few_metas(&state), None, "there are no more");
        add(&mut state, 2..3, Roles::META);
        assert_eq!(too_few_metas(&state), None);
        let incarnation = state.node(NodeId(17)).expect("known").incarnation.get();
        ok(&mut state, Command::NodesDown(NodesDown { nodes: vec![NodeAt { node: 17, incarnation }] }));
        let said = too_few_metas(&state).expect("two of three");
        assert!(said.contains("only 2 of 3 meta nodes run") && said.contains("start n17"), "{said}");
    }

    /// Names would stay on one machine for ever, and its loss be the loss of all files.
    #[test]
    fn a_partition_that_could_have_more_members_is_named() {
        let mut state = empty(1);
        add(&mut state, 0..1, Roles::META);
        ok(&mut state, Command::CreateVolume(CreateVolume { name: "v".into(), ..CreateVolume::default() }));
        let said = |state: &State| {
            let mut out = Problems::default();
            thin_partitions(state, &Soft::default(), &mut out);
            out.texts().join("\n")
        };
        add(&mut state, 1..2, Roles::META);
        assert_eq!(said(&state), "", "there are no nodes for three");
        add(&mut state, 2..3, Roles::META);
        let text = said(&state);
        assert!(text.contains("p1 (volume v) keeps its names on n16 only"), "{text}");
        assert!(text.ends_with("`cairn admin partition add 1 n17 n18`"), "{text}");
        let members = vec![16, 17, 18];
        ok(&mut state, Command::SetPartitionMembers(SetPartitionMembers { partition: 1, members, renew: 0 }));
        assert_eq!(said(&state), "", "it is getting them: {:?}", state.node(NodeId(16)));
    }
}
