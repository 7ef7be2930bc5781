//! Commands keep their bytes, and what this build does not know stops it.
use super::*;
use cairn_types::Layout;

fn golden() -> Vec<(Command, &'static str)> {
    vec![
        (
            Command::InitCluster(InitCluster { cluster: vec![0xab; 16], name: "x".into() }),
            "080112150a10abababababababababababababababab120178",
        ),
        (
            Command::Register(Register {
                uuid: vec![1; 16],
                node: 17,
                roles: 4,
                address: "h:1".into(),
                rack: "r".into(),
                host: "h".into(),
                disks: vec![RegisterDisk { uuid: vec![2; 16], disk: 3, path: "/d".into(), ..RegisterDisk::default() }],
                silent: vec![18],
                ..Register::default()
            }),
            "0801223e0a1001010101010101010101010101010101101118042203683a313201723a01684a180a100202020202020202020202020202020210031a022f64520112",
        ),
        (
            Command::BindNode(BindNode { node: 17, holder: "n4".into(), former: "n3".into() }),
            "0801fa020a081112026e341a026e33",
        ),
        (Command::RevokeKeys(RevokeKeys { names: vec!["n4".into()] }), "08018203040a026e34"),
        (Command::NodesDown(NodesDown { nodes: vec![NodeAt { node: 17, incarnation: 5 }] }), "08012a060a0408111005"),
        (Command::MemberFailed(MemberAt { pg: 1, disk: 2, epoch: 3 }), "08013a06080110021803"),
        (
            Command::CreatePgs(CreatePgs {
                volume: 1,
                scheme: 3,
                groups: vec![Disks { disks: vec![1, 2, 3], ..Disks::default() }],
            }),
            "0801520b080110031a050a03010203",
        ),
        (
            Command::CreatePgs(CreatePgs {
                volume: 1,
                scheme: 3,
                groups: vec![Disks { disks: vec![1, 2, 3], full: vec![3] }],
            }),
            "0801520e080110031a080a03010203120103",
        ),
        (
            Command::ReplaceMembers(ReplaceMembers {
                groups: vec![ReplaceIn { pg: 1, epoch: 3, swaps: vec![Swap { old: 2, new: 9 }] }],
            }),
            "0801a2010c0a0a080110031a0408021009",
        ),
        (
            Command::ForcePg(ForcePg {
                pg: 1,
                epoch: 3,
                lost: vec![2],
                promoted: Vec::new(),
                index_floor: 9,
                fresh: vec![Swap { old: 2, new: 9 }],
            }),
            "08019a0110080110031a01022809f2020408021009",
        ),
        (Command::TakeBack(MemberAt { pg: 1, disk: 2, epoch: 3 }), "0801aa0106080110021803"),
        (
            Command::FormersGone(FormersGone { members: vec![MemberAt { pg: 1, disk: 2, epoch: 3 }] }),
            "0801b201080a06080110021803",
        ),
        (Command::GrantSessions(GrantSessions { count: 1024 }), "08017a03088008"),
        (
            Command::PartitionsBegun(PartitionsBegun { members: vec![PartitionAt { partition: 1, node: 16 }] }),
            "08018a01060a0408011010",
        ),
        (Command::SetGray(SetGray { disk: 3, gray: true, why: "x".into() }), "0801ea0107080310011a0178"),
        (Command::Note(Note { kind: 22, node: 1, text: "x".into(), ..Note::default() }), "0801e20107081610012a0178"),
        (Command::PartitionSettled(PartitionSettled { partition: 1, wish: 300 }), "08019201050801"),
        (Command::ActivateLevel(ActivateLevel { level: 3 }), "080192020208"),
        (
            Command::PartitionMarks(PartitionMarks {
                marks: vec![crate::marks::MarkOf { partition: 1, node: 16, term: 3, index: 9 }],
            }),
            "0801a2020a0a080801101018032009",
        ),
        (Command::TakeUp(crate::take_up::TakeUp { begin: true, ..Default::default() }), "0801b202020801"),
        (
            Command::SetVolume(SetVolume {
                name: "v".into(),
                items: vec![ConfigValue { key: "k".into(), value: "8".into() }],
            }),
            "08019a020b0a017612060a016b120138",
        ),
        (
            Command::CreateVolume(CreateVolume { name: "v".into(), layout: 3, ..CreateVolume::default() }),
            "080162050a01761003",
        ),
        (
            Command::CreateVolume(CreateVolume { name: "v".into(), layout: 3, partitions: 300, members: Vec::new() }),
            "080162080a0176100318ac02",
        ),
        (
            Command::CreateVolume(CreateVolume {
                name: "v".into(),
                layout: 3,
                members: vec![MembersOf { nodes: vec![16, 17, 300] }],
                ..CreateVolume::default()
            }),
            "0801620d0a0176100322060a041011ac02",
        ),
        (Command::DeleteVolume(DeleteVolume { name: "v".into(), trashed_ns: 0 }), "08016a030a0176"),
        (Command::DeleteVolume(DeleteVolume { name: "v".into(), trashed_ns: 300 }), "08016a060a017610ac02"),
        (Command::TrashVolume(TrashVolume { name: "v".into() }), "0801ba02030a0176"),
        (Command::RestoreVolume(RestoreVolume { name: "v".into() }), "0801c202030a0176"),
        (
            Command::CreateStripeGroups(CreateStripeGroups {
                volume: 1,
                scheme: 3,
                later: 16,
                groups: vec![StripeGroupOf {
                    core_rack: "r".into(),
                    rack_capacity: 2,
                    columns: vec![Disks { disks: vec![1, 2, 3], ..Disks::default() }],
                }],
            }),
            "0801da0214080110031810220c0a017210021a050a03010203",
        ),
    ]
}

/// Logs written by this version would read differently by the next.
#[test]
fn golden_bytes() {
    for (command, want) in golden() {
        let bytes = command.clone().to_bytes();
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert!(hex.starts_with(want), "{command:?}: {hex}");
        assert_eq!(Command::from_bytes(&bytes), Ok(command));
    }
}

/// A command of this build would be logged before all members understand it, and stop the others.
#[test]
fn each_command_says_its_level() {
    let set = |key: &str| {
        Command::SetConfig(SetConfig {
            items: ["node_timeout", key].map(|key| ConfigValue { key: key.into(), value: String::new() }).to_vec(),
        })
    };
    let private = ConfigValue { key: "private_data".into(), value: "on".into() };
    let bits = |layout: &str| layout.parse::<Layout>().expect("a layout").to_bits();
    let default_layout = |value: &str| {
        let (key, value) = ("default_layout".into(), value.into());
        Command::SetConfig(SetConfig { items: vec![ConfigValue { key, value }] })
    };
    for (command, level) in [
        (Command::GrantSessions(GrantSessions { count: 1 }), 0),
        (Command::Note(Note::default()), 1),
        (Command::CreateVolume(CreateVolume { partitions: 1, ..CreateVolume::default() }), 0),
        (Command::CreateVolume(CreateVolume { partitions: 2, ..CreateVolume::default() }), 5),
        (Command::CreateVolume(CreateVolume { layout: bits("r3>rs-6-3"), ..CreateVolume::default() }), 12),
        (Command::CreateVolume(CreateVolume { layout: bits("rs-8-2"), partitions: 2, ..CreateVolume::default() }), 31),
        (Command::StartJob(StartJob { layout: bits("r3>rs-10-2"), ..StartJob::default() }), 31),
        (Command::CreatePgs(CreatePgs { scheme: 21, ..CreatePgs::default() }), 0),
        (Command::CreatePgs(CreatePgs { scheme: 22, ..CreatePgs::default() }), 31),
        (Command::CreateStripeGroups(CreateStripeGroups { later: 23, ..CreateStripeGroups::default() }), 31),
        (default_layout("rs-6-2"), 31),
        (default_layout("r3>rs-6-3"), 12),
        (Command::DeleteVolume(DeleteVolume { name: "v".into(), trashed_ns: 0 }), 0),
        (Command::DeleteVolume(DeleteVolume { name: "v".into(), trashed_ns: 1 }), 5),
        (Command::TrashVolume(TrashVolume::default()), 5),
        (Command::RestoreVolume(RestoreVolume::default()), 5),
        (Command::ForcePg(ForcePg { lost: vec![1], ..ForcePg::default() }), 0),
        (Command::ForcePg(ForcePg { lost: vec![1], fresh: vec![Swap { old: 1, new: 2 }], ..ForcePg::default() }), 15),
        (Command::SetGray(SetGray::default()), 1),
        (Command::ActivateLevel(ActivateLevel { level: 7 }), 7),
        (Command::SetVolume(SetVolume::default()), 4),
        (Command::PartitionMarks(PartitionMarks::default()), 5),
        (Command::TakeUp(crate::take_up::TakeUp::default()), 5),
        (Command::CreateStripeGroups(CreateStripeGroups::default()), 19),
        (Command::BindNode(BindNode::default()), 22),
        (set("stripe_groups"), 19),
        (set("private_data"), 23),
        (Command::SetVolume(SetVolume { name: "v".into(), items: vec![private] }), 23),
        (set("probe_deadline"), 0),
        (set("spread_leaders_after"), 1),
        (set("no such key"), 0),
    ] {
        assert_eq!(command.level(), level, "{command:?}");
    }
    let newest = golden().iter().map(|(command, _)| command.level()).max();
    assert!(newest <= Some(cairn_types::FEATURE_LEVEL));
}

/// Skipping an unknown command would make members differ.
#[test]
fn unknown_commands_and_formats_are_errors() {
    let later = LogItem { format: 2, command: Some(Command::GrantSessions(GrantSessions { count: 1 })) };
    assert_eq!(Command::from_bytes(&later.encode_to_vec()), Err(CommandError::Later { format: 2 }));
    // Field 99, a command of a later build.
    let mut unknown = LogItem { format: FORMAT, command: None }.encode_to_vec();
    unknown.extend_from_slice(&[0x9a, 0x06, 0x00]);
    assert_eq!(Command::from_bytes(&unknown), Err(CommandError::Later { format: FORMAT }));
    assert!(matches!(Command::from_bytes(&[0xff, 0xff]), Err(CommandError::Malformed(_))));
}
