//! A sound volume has no findings, each kind of damage is found, and what can be mended is sound afterwards.
mod across;

use super::*;
use crate::mend::{LOST_AND_FOUND, mend_item};
use crate::namespace::{AppliedAt, Namespace, NamespaceConfig};
use crate::{NamedScan, PathFinder};
use cairn_types::{Layout, PartitionId, VolumeId, WallTime};
use cairn_wire::Opcode;
use cairn_wire::common::{Credentials, Extent as Message};
use cairn_wire::meta::*;
use prost::Message as _;

struct Side {
    namespace: Namespace,
    sequence: u64,
}

impl Side {
    /// Directories in each other, files with extents and two names, a quota, an open file without a name, a removed
    /// tree.
    fn new() -> Self {
        let config = NamespaceConfig::new(VolumeId(1), PartitionId(1), Layout::replicated(3));
        let mut side = Side { namespace: Namespace::new(&config), sequence: 0 };
        let mut above = 1;
        for name in ["a", "b", "c"] {
            above = side.mkdir(above, name);
        }
        side.quota(2);
        for number in 0..20 {
            side.file([1, 2, above][number % 3], &format!("f{number}"), number as u32);
        }
        let linked = side.file(1, "one", 50);
        let link =
            LinkRequest { header: side.header(), inode: linked, parent: 2, name: b"two".to_vec(), replace: false };
        side.apply(Opcode::Link, &link);
        let unnamed = CreateUnnamedRequest { header: side.header(), parent: 1, mode: 0o644, layout: 0, umask: 0 };
        side.apply(Opcode::CreateUnnamed, &unnamed);
        let gone = side.mkdir(1, "gone");
        let below = side.mkdir(gone, "below");
        for number in 0..5 {
            side.file(below, &format!("g{number}"), 60 + number);
        }
        let remove = RemoveTreeRequest { header: side.header(), parent: 1, name: b"gone".to_vec() };
        side.apply(Opcode::RemoveTree, &remove);
        side
    }

    fn header(&mut self) -> Option<MetaHeader> {
        self.sequence += 1;
        let who = Some(Credentials::default());
        let partition = self.namespace.partition().get();
        Some(MetaHeader { volume: 1, partition, session: 1, slot: 0, sequence: self.sequence, who })
    }

    fn apply(&mut self, opcode: Opcode, request: &impl prost::Message) -> Vec<u8> {
        let index = self.namespace.applied_index() + 1;
        let (at, mut out) = (AppliedAt { index, term: 1, time: WallTime(index) }, Vec::new());
        self.namespace.apply(at, opcode, &request.encode_to_vec(), &mut out).expect("done");
        out
    }

    fn made(answer: &[u8]) -> u64 {
        AttributesResponse::decode(answer).expect("attributes").attributes.expect("some").inode
    }

    fn mkdir(&mut self, parent: u64, name: &str) -> u64 {
        let request =
            MkdirRequest { header: self.header(), parent, name: name.into(), mode: 0o755, ..Default::default() };
        Self::made(&self.apply(Opcode::Mkdir, &request))
    }

    fn file(&mut self, parent: u64, name: &str, index: u32) -> u64 {
        let extents = vec![Message { length: 5000, pg: 7, index, ..Default::default() }];
        let request = CreateRequest {
            header: self.header(),
            parent,
            name: name.into(),
            mode: 0o100_644,
            size: 5000,
            extents,
            written_by: 1,
            ..Default::default()
        };
        Self::made(&self.apply(Opcode::Create, &request))
    }

    fn quota(&mut self, inode: u64) {
        let request =
            SetQuotaRequest { header: self.header(), inode, bytes_max: 1 << 30, inodes_max: 1000, remove: false };
        self.apply(Opcode::SetQuota, &request);
        self.apply(Opcode::ReclaimBatch, &ReclaimBatch::default());
    }

    /// Checks in small parts and steps.
    fn check(&self) -> FsckReport {
        let (snapshot, mut fsck) = (self.namespace.snapshot(), Fsck::new(4));
        while fsck.step(&snapshot, 3) {}
        fsck.into_report()
    }

    fn texts(&self) -> Vec<(u64, String)> {
        self.check().findings.into_iter().map(|finding| (finding.inode, finding.text)).collect()
    }

    fn mend(&mut self) {
        let item = |finding: &Finding| {
            let (kind, inode, numbers) = mend_item(finding.inode, finding.mend?);
            Some(MendItem { kind, inode, numbers, name: Vec::new() })
        };
        let items = self.check().findings.iter().filter_map(item).collect();
        self.apply(Opcode::MendNamespace, &MendNamespace { items });
    }

    fn change(&mut self, id: u64, change: impl FnOnce(&mut Inode)) {
        let mut inode = self.namespace.inode(id).expect("there");
        change(&mut inode);
        self.namespace.put_inode(id, &inode);
    }

    fn dentry(&self, directory: u64, name: &str) -> u64 {
        self.namespace.dentry(directory, name.as_bytes()).expect("readable").expect("there").inode
    }
}

/// An operator would look for damage that is not there.
#[test]
fn a_sound_volume_has_no_findings() {
    let side = Side::new();
    side.namespace.check_invariants().expect("sound");
    let report = side.check();
    assert_eq!(report.findings, []);
    assert_eq!(
        (report.inodes, report.directories),
        (side.namespace.counters().inodes, side.namespace.counters().directories)
    );
    for part in [1, 7, 1000] {
        let (snapshot, mut fsck) = (side.namespace.snapshot(), Fsck::new(part));
        while fsck.step(&snapshot, 1000) {}
        assert_eq!(fsck.into_report().found, 0, "in parts of {part}");
    }
}

/// Damage would stay unseen until somebody misses a file.
#[test]
fn each_kind_of_damage_is_found() {
    type Damage = fn(&mut Side) -> (u64, &'static str);
    let kinds: [Damage; 9] = [
        |side| {
            side.namespace.counters.stored_bytes += 5;
            (0, "the totals are kept as")
        },
        |side| {
            let record = QuotaRecord { bytes: 3, ..side.namespace.quota_record(2).expect("read").expect("some") };
            side.namespace.put_quota(2, &record);
            (2, "its quota says 3 bytes")
        },
        |side| {
            let id = side.dentry(1, "one");
            side.change(id, |inode| inode.nlink = 5);
            (id, "says that it has 5 names, it has 2")
        },
        |side| {
            side.change(2, |inode| inode.nlink = 9);
            (2, "has 9 links, 2 and its subdirectories are 3")
        },
        |side| {
            side.change(2, |inode| inode.size += 1);
            (2, "entries, it has")
        },
        |side| {
            let id = side.dentry(1, "one");
            side.change(id, |inode| inode.size = 10);
            (id, "an extent goes to 5000, the size is 10")
        },
        |side| {
            let id = side.dentry(1, "f0");
            side.namespace.tree.remove(key::attributes(id).as_bytes());
            (id, "and no attributes that can be read")
        },
        |side| {
            side.change(3, |inode| inode.parent = 4);
            side.change(4, |inode| inode.parent = 3);
            (4, "is in a circle of directories")
        },
        |side| {
            side.namespace.put_dentry(2, b"stray", Dentry { inode: 9999, d_type: 8 });
            (2, "has an entry for inode 9999, which is not there")
        },
    ];
    for (number, damage) in kinds.into_iter().enumerate() {
        let mut side = Side::new();
        let (inode, text) = damage(&mut side);
        let found = side.texts();
        let told = found.iter().any(|(id, told)| *id == inode && told.contains(text));
        assert!(told, "damage {number}: {text:?} is not in {found:?}");
    }
}

/// Totals would stay wrong, quotas refuse what fits, and files that lost their names stay out of reach.
#[test]
fn what_can_be_mended_is_sound_afterwards() {
    let mut side = Side::new();
    let (file, directory) = (side.dentry(1, "f0"), side.dentry(2, "b"));
    // Both lose their names, and the directories around them do not notice.
    for (parent, name, is_dir) in [(1, "f0", 0), (2, "b", 1)] {
        side.namespace.remove_dentry(parent, name.as_bytes());
        side.change(parent, |inode| {
            inode.size -= 1;
            inode.nlink -= is_dir;
        });
    }
    side.namespace.counters.inodes += 3;
    let record = side.namespace.quota_record(2).expect("read").expect("some");
    side.namespace.put_quota(2, &QuotaRecord { bytes: 1, inodes: 99, ..record });
    let linked = side.dentry(1, "one");
    side.change(linked, |inode| inode.nlink = 1);
    side.change(1, |inode| inode.nlink = 77);
    assert!(side.check().found >= 6, "{:?}", side.texts());
    side.mend();
    // What was adopted is counted by another quota, step by step.
    side.apply(Opcode::ReclaimBatch, &ReclaimBatch::default());
    assert_eq!(side.texts(), []);
    side.namespace.check_invariants().expect("sound");
    let place = side.dentry(1, std::str::from_utf8(LOST_AND_FOUND).expect("text"));
    assert_eq!(side.dentry(place, &format!("#{file}")), file);
    assert_eq!(side.dentry(place, &format!("#{directory}")), directory);
    side.mend();
    assert_eq!(side.texts(), [], "mending again changes nothing");
}

/// A finding without its path helps nobody.
#[test]
fn findings_have_paths() {
    let side = Side::new();
    let deep = side.dentry(4, "f2");
    let snapshot = side.namespace.snapshot();
    let mut paths = PathFinder::new([deep, 4, 0, 4242]);
    while paths.step(&snapshot, 2) {}
    let path = |inode| paths.path(&snapshot, inode).map(|path| String::from_utf8_lossy(&path).into_owned());
    assert_eq!(path(deep).as_deref(), Some("/a/b/c/f2"));
    assert_eq!(path(4).as_deref(), Some("/a/b/c"));
    assert_eq!(path(1).as_deref(), Some("/"));
    assert_eq!((path(4242), path(0)), (None, None));
    let mut named = Vec::new();
    let mut scan = NamedScan::new();
    while scan.step(&snapshot, 5, |found| named.push(*found)).expect("sound") {}
    assert!(named.iter().any(|found| found.inode == deep && side.namespace.still_names(found)));
    assert!(named.iter().all(|found| found.inode == 0 || side.namespace.still_names(found)));
}
