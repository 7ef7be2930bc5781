//! Random sequences of commands: invariants after each, equal states from equal logs, deltas that add up, checkpoints
//! that give the same state back.
use super::*;
use crate::checkpoint;
use cairn_types::PartitionId;
use cairn_wire::manager::ClusterMap;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Small numbers so that commands meet the same items again and again.
fn command() -> impl Strategy<Value = Command> {
    let disks = prop::collection::btree_set(1u32..12, 1..7).prop_map(|disks| disks.into_iter().collect::<Vec<u32>>());
    let at = (1u32..8, 1u32..12, 1u64..6).prop_map(|(pg, disk, epoch)| MemberAt { pg, disk, epoch });
    let name = prop::sample::select(vec!["a", "b", "c", "a/b"]).prop_map(str::to_string);
    let registration = (0u32..6, 0u32..4, 1u32..8, prop::collection::vec(16u32..22, 0..4), any::<bool>()).prop_map(
        |(number, disks, roles, silent, broken)| {
            let mut command = Register { silent, ..register(number, Roles(roles), disks) };
            if let Some(disk) = command.disks.first_mut() {
                disk.state = u32::from(broken);
            }
            command
        },
    );
    prop_oneof![
        1 => Just(Command::InitCluster(InitCluster { cluster: vec![5; 16], name: "x".into() })),
        1 => (1u32..18, any::<bool>()).prop_map(|(node, removed)| Command::PutManager(PutManager { node, removed, ..PutManager::default() })),
        8 => registration.prop_map(Command::Register),
        4 => prop::collection::vec((16u32..22, 1u64..30), 1..4).prop_map(|nodes| {
            let nodes = nodes.into_iter().map(|(node, incarnation)| NodeAt { node, incarnation }).collect();
            Command::NodesDown(NodesDown { nodes })
        }),
        2 => (1u32..12, 1u64..30, 0u32..5).prop_map(|(disk, incarnation, state)| {
            let disk = DiskAt { disk, incarnation, state, problem: "EIO".into() };
            Command::DiskStates(DiskStates { disks: vec![disk] })
        }),
        4 => at.clone().prop_map(Command::MemberFailed),
        4 => at.clone().prop_map(Command::Rejoin),
        6 => (at.clone(), 1u32..12).prop_map(|(at, new)| {
            let swaps = vec![Swap { old: at.disk, new }];
            Command::ReplaceMembers(ReplaceMembers { groups: vec![ReplaceIn { pg: at.pg, epoch: at.epoch, swaps }] })
        }),
        3 => at.clone().prop_map(Command::TakeBack),
        5 => (at.clone(), 1u32..12).prop_map(|(at, new)| {
            let swaps = vec![Swap { old: at.disk, new }];
            Command::BeginMoves(ReplaceMembers { groups: vec![ReplaceIn { pg: at.pg, epoch: at.epoch, swaps }] })
        }),
        1 => at.clone().prop_map(|at| Command::CancelMoves(CancelMoves { members: vec![at] })),
        2 => (0u32..3, 1u32..20, any::<bool>()).prop_map(|(kind, id, cancel)| {
            let kind = match kind {
                0 => TargetKind::Disk(id),
                1 => TargetKind::Node(id),
                _ => TargetKind::Rack(format!("rack{}", id % 3)),
            };
            Command::SetDrain(SetDrain { target: Some(TargetOf { kind: Some(kind) }), cancel })
        }),
        2 => (any::<bool>(), 1u32..22).prop_map(|(disk, id)| {
            let kind = if disk { TargetKind::Disk(id) } else { TargetKind::Node(id) };
            Command::Remove(Remove { target: Some(TargetOf { kind: Some(kind) }) })
        }),
        1 => (16u32..22, any::<bool>()).prop_map(|(node, end)| {
            let target = Some(TargetOf { kind: Some(TargetKind::Node(node)) });
            Command::Hibernate(Hibernate { target, until_ns: 99, end })
        }),
        2 => at.clone().prop_map(|at| Command::FormersGone(FormersGone { members: vec![at] })),
        6 => prop::collection::vec(at, 1..4).prop_map(|members| Command::CaughtUp(CaughtUp { members })),
        8 => (1u32..4, disks, any::<bool>()).prop_map(|(volume, disks, erasure)| {
            // rs-3-2 with five, rs-4-2 with six, else so many copies.
            let scheme = match disks.len() {
                5 if erasure => 16,
                6 => 21,
                copies => copies as u32,
            };
            Command::CreatePgs(CreatePgs { volume, scheme, groups: vec![Disks { disks, ..Disks::default() }] })
        }),
        3 => (1u32..4, 0u32..3, prop::collection::vec(1u32..12, 9)).prop_map(|(volume, rack, disks)| {
            let columns = disks.chunks(3).map(|disks| Disks { disks: disks.to_vec(), ..Disks::default() });
            let group = StripeGroupOf { core_rack: format!("rack{rack}"), rack_capacity: 2, columns: columns.collect() };
            Command::CreateStripeGroups(CreateStripeGroups { volume, scheme: 3, later: 16, groups: vec![group] })
        }),
        2 => (1u32..8, any::<bool>()).prop_map(|(pg, open)| {
            let pgs = |yes| if yes { vec![pg] } else { Vec::new() };
            Command::SetPgsOpen(SetPgsOpen { open: pgs(open), closed: pgs(!open) })
        }),
        3 => (name.clone(), 0u32..4, prop::collection::vec(prop::collection::vec(16u32..22, 1..4), 0..3)).prop_map(
            |(name, partitions, members)| {
                let members = members.into_iter().map(|nodes| MembersOf { nodes }).collect();
                Command::CreateVolume(CreateVolume { name, layout: 0, partitions, members })
            }
        ),
        1 => name.clone().prop_map(|name| Command::DeleteVolume(DeleteVolume { name, trashed_ns: 0 })),
        1 => (name.clone(), any::<bool>()).prop_map(|(name, back)| match back {
            true => Command::RestoreVolume(RestoreVolume { name }),
            false => Command::TrashVolume(TrashVolume { name }),
        }),
        1 => (1u32..4, prop::collection::vec(16u32..22, 0..4)).prop_map(|(partition, members)| {
            Command::SetPartitionMembers(SetPartitionMembers { partition, members, renew: 0 })
        }),
        1 => (1u32..4, 0u64..40).prop_map(|(partition, wish)| {
            Command::PartitionSettled(PartitionSettled { partition, wish })
        }),
        2 => (0u32..4, 14u32..24).prop_map(|(partition, node)| {
            Command::PartitionsBegun(PartitionsBegun { members: vec![PartitionAt { partition, node }] })
        }),
        1 => (0u32..9).prop_map(|count| Command::GrantSessions(GrantSessions { count })),
        1 => prop::sample::select(vec!["9s", "bad"]).prop_map(|value| {
            let item = ConfigValue { key: "node_timeout".into(), value: value.into() };
            Command::SetConfig(SetConfig { items: vec![item] })
        }),
        1 => prop::sample::select(vec!["on", "off"]).prop_map(|value| {
            let item = ConfigValue { key: "stripe_groups".into(), value: value.into() };
            Command::SetConfig(SetConfig { items: vec![item] })
        }),
        1 => (name, prop::sample::select(vec!["80", "", "bad"])).prop_map(|(name, value)| {
            let item = ConfigValue { key: "rebalance_above".into(), value: value.into() };
            Command::SetVolume(SetVolume { name, items: vec![item] })
        }),
    ]
}

/// Verdicts that fit the present state, so that deep states are reached: a random pick of nodes goes down, members
/// catch up, and so on.
fn aim(state: &State, command: Command, pick: u64) -> Command {
    let pg = |at: &MemberAt| {
        let all: Vec<PgId> = state.pgs().map(|pg| pg.id).collect();
        let id = if all.is_empty() { PgId(at.pg) } else { all[pick as usize % all.len()] };
        let Some(pg) = state.pg(id) else { return at.clone() };
        let member = pg.members[(pick >> 8) as usize % pg.members.len()];
        // One in four speaks of another epoch.
        let epoch = if (pick >> 16).is_multiple_of(4) { at.epoch } else { pg.epoch.get() };
        MemberAt { pg: id.get(), disk: member.disk.get(), epoch }
    };
    match command {
        Command::NodesDown(down) => {
            let present = |at: NodeAt| {
                let incarnation = state.node(NodeId(at.node)).map_or(at.incarnation, |n| n.incarnation.get());
                NodeAt { incarnation, ..at }
            };
            Command::NodesDown(NodesDown { nodes: down.nodes.into_iter().map(present).collect() })
        }
        Command::ReplaceMembers(ReplaceMembers { groups }) => {
            let aimed = groups.into_iter().map(|group| {
                let swap = group.swaps[0];
                let at = pg(&MemberAt { pg: group.pg, disk: swap.old, epoch: group.epoch });
                ReplaceIn { pg: at.pg, epoch: at.epoch, swaps: vec![Swap { old: at.disk, ..swap }] }
            });
            Command::ReplaceMembers(ReplaceMembers { groups: aimed.collect() })
        }
        Command::BeginMoves(ReplaceMembers { groups }) => {
            let aimed = groups.into_iter().map(|group| {
                let swap = group.swaps[0];
                let at = pg(&MemberAt { pg: group.pg, disk: swap.old, epoch: group.epoch });
                ReplaceIn { pg: at.pg, epoch: at.epoch, swaps: vec![Swap { old: at.disk, ..swap }] }
            });
            Command::BeginMoves(ReplaceMembers { groups: aimed.collect() })
        }
        Command::CancelMoves(c) => {
            Command::CancelMoves(CancelMoves { members: c.members.iter().map(|at| joining(state, pg(at))).collect() })
        }
        Command::TakeBack(at) => Command::TakeBack(former(state, pg(&at))),
        Command::FormersGone(c) => {
            Command::FormersGone(FormersGone { members: c.members.iter().map(|at| former(state, pg(at))).collect() })
        }
        Command::MemberFailed(at) => Command::MemberFailed(pg(&at)),
        Command::Rejoin(at) => Command::Rejoin(pg(&at)),
        // One in two is of a disk that joins, if there is one.
        Command::CaughtUp(c) => {
            let some = |at| if (pick >> 24).is_multiple_of(2) { joining(state, pg(at)) } else { pg(at) };
            Command::CaughtUp(CaughtUp { members: c.members.iter().map(some).collect() })
        }
        // One in four is for another wish.
        Command::PartitionSettled(settled) => {
            let wish = state.partition(PartitionId(settled.partition)).map(|p| p.wish);
            let wish = wish.filter(|_| !pick.is_multiple_of(4)).unwrap_or(settled.wish);
            Command::PartitionSettled(PartitionSettled { wish, ..settled })
        }
        // Members that can be.
        Command::SetPartitionMembers(set) => {
            let metas: Vec<u32> = state.nodes().filter(|n| n.roles.has(Roles::META)).map(|n| n.id.get()).collect();
            let size = [1, 3, 5][pick as usize % 3];
            let some = metas.iter().cycle().skip((pick >> 4) as usize % 6).take(size.min(metas.len()));
            let members: Vec<u32> = some.copied().collect();
            Command::SetPartitionMembers(SetPartitionMembers { members, ..set })
        }
        other => other,
    }
}

/// The disk that joins that group, if there is one.
fn joining(state: &State, at: MemberAt) -> MemberAt {
    let joining = state.pg(PgId(at.pg)).and_then(|pg| pg.joining).map(|joining| joining.disk.get());
    MemberAt { disk: joining.unwrap_or(at.disk), ..at }
}

/// A disk that was a member of that group, if there is one.
fn former(state: &State, at: MemberAt) -> MemberAt {
    let former = state.pg(PgId(at.pg)).and_then(|pg| pg.formers.last()).map(|former| former.disk.get());
    MemberAt { disk: former.unwrap_or(at.disk), ..at }
}

/// What a client keeps of the map.
#[derive(Default, PartialEq, Debug)]
struct Kept {
    nodes: BTreeMap<u32, String>,
    disks: BTreeMap<u32, String>,
    volumes: BTreeMap<u32, String>,
    partitions: BTreeMap<u32, String>,
    pgs: BTreeMap<u32, String>,
}

impl Kept {
    fn apply(&mut self, map: &ClusterMap) {
        if map.base_version == 0 {
            *self = Self::default();
        }
        self.nodes.extend(map.nodes.iter().map(|i| (i.id, format!("{i:?}"))));
        // A disk's count of groups is told with the disk, not with every change of a group.
        self.disks.extend(
            map.disks.iter().map(|i| (i.id, format!("{:?}", cairn_wire::manager::Disk { pgs: 0, ..i.clone() }))),
        );
        for item in &map.volumes {
            if item.deleted {
                self.volumes.remove(&item.id)
            } else {
                self.volumes.insert(item.id, format!("{item:?}"))
            };
        }
        for item in &map.partitions {
            if item.removed {
                self.partitions.remove(&item.id)
            } else {
                self.partitions.insert(item.id, format!("{item:?}"))
            };
        }
        for item in &map.pgs {
            let state = item.state.as_ref().expect("always there");
            if state.retired {
                self.pgs.remove(&state.pg)
            } else {
                self.pgs.insert(state.pg, format!("{item:?}"))
            };
        }
    }
}

/// A data node that follows its own map.
#[derive(Default)]
struct Follower {
    kept: Kept,
    version: u64,
}

impl Follower {
    const NODE: NodeId = NodeId(16);

    /// It keeps more than it needs after a disk moved, never less and never older.
    fn follow(&mut self, state: &State, applied: &Applied) {
        let soft = Soft::default();
        let registered = matches!(&applied.outcome, Ok(Outcome::Registered(given)) if given.node == Self::NODE);
        let since = if registered { 0 } else { self.version };
        let map = state.map(since, Scope::Node(Self::NODE), &soft);
        self.kept.apply(&map);
        self.version = map.version;
        let mut full = Kept::default();
        full.apply(&state.map(0, Scope::Node(Self::NODE), &soft));
        let all_in = |full: &BTreeMap<u32, String>, kept: &BTreeMap<u32, String>| {
            full.iter().all(|(id, item)| kept.get(id) == Some(item))
        };
        assert!(all_in(&full.nodes, &self.kept.nodes), "{:?} {:?}", full.nodes, self.kept.nodes);
        assert!(all_in(&full.disks, &self.kept.disks), "{:?} {:?}", full.disks, self.kept.disks);
        assert!(all_in(&full.pgs, &self.kept.pgs), "{:?} {:?}", full.pgs, self.kept.pgs);
        assert!(all_in(&full.volumes, &self.kept.volumes) && all_in(&full.partitions, &self.kept.partitions));
        for pg in state.map(0, Scope::Node(Self::NODE), &soft).pgs.iter().filter_map(|pg| pg.state.as_ref()) {
            assert!(pg.members.iter().all(|m| self.kept.nodes.contains_key(&m.node)), "a fellow's address is missing");
        }
    }
}

/// What may never fall or repeat.
#[derive(Default)]
struct History {
    epochs: BTreeMap<PgId, Epoch>,
    incarnations: BTreeSet<u64>,
    sessions: u64,
    version: u64,
}

impl History {
    fn check(&mut self, before: &State, state: &State, applied: &Applied) {
        state.check_invariants();
        assert!(state.version() >= self.version && state.version() <= self.version + 1);
        self.version = state.version();
        for pg in state.pgs() {
            let old = self.epochs.insert(pg.id, pg.epoch);
            let changed = before.pg(pg.id).is_none_or(|old| old.members != pg.members);
            assert!(old.is_none_or(|old| if changed { pg.epoch > old } else { pg.epoch >= old }), "{pg:?}");
            let told = applied.raised.contains(&pg.id);
            assert_eq!(told, old != Some(pg.epoch), "members are told exactly of new epochs: {pg:?}");
        }
        match &applied.outcome {
            Ok(Outcome::Registered(given)) => assert!(self.incarnations.insert(given.incarnation.get())),
            Ok(Outcome::Sessions(first, count)) => {
                assert!(first.get() > self.sessions);
                self.sessions = first.get() + u64::from(*count) - 1;
            }
            Err(_) => assert!(state == before, "a refused command changed something"),
            _ => {}
        }
    }
}

fn reread(state: &State, piece: usize) -> State {
    let mut bytes = Vec::new();
    checkpoint::write(state, |part| {
        bytes.extend_from_slice(part);
        Ok::<(), ()>(())
    })
    .expect("a vector takes everything");
    let mut reader = checkpoint::Reader::new();
    bytes.chunks(piece).for_each(|part| reader.feed(part).expect("just written"));
    reader.finish().expect("just written")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Members would differ, epochs repeat, or maps drift apart.
    #[test]
    fn random_histories(commands in prop::collection::vec((command(), any::<u64>()), 1..150), every in 1usize..20) {
        let soft = Soft::default();
        let mut state = cluster(5);
        let mut twin = state.clone();
        let mut history = History { version: state.version(), ..History::default() };
        history.epochs.extend(state.pgs().map(|pg| (pg.id, pg.epoch)));
        let (mut kept, mut version) = (Kept::default(), 0);
        let mut follower = Follower::default();
        for (i, (command, pick)) in commands.into_iter().enumerate() {
            let command = aim(&state, command, pick);
            let logged = command.clone().to_bytes();
            let before = state.clone();
            let time = WallTime(i as u64 * SECOND);
            let applied = state.apply(time, &command);
            history.check(&before, &state, &applied);
            follower.follow(&state, &applied);
            let again = twin.apply(time, &Command::from_bytes(&logged).expect("just encoded"));
            prop_assert_eq!(&again, &applied, "the same log gave another outcome");
            if i % every == 0 {
                let map = state.map(version, Scope::All, &soft);
                prop_assert!(version == 0 || map.base_version == version);
                kept.apply(&map);
                version = map.version;
                let mut full = Kept::default();
                full.apply(&state.map(0, Scope::All, &soft));
                prop_assert_eq!(&kept, &full, "deltas do not add up to the whole map");
                twin = reread(&twin, every * 7);
            }
            prop_assert!(twin == state, "the same log gave another state");
        }
    }
}
