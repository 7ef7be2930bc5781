//! Files with a later scheme: their stage follows what is done to them, and those that wait are listed, and no others.
use crate::driver::*;
use cairn_types::{ErrorCode as E, Layout, Stage};
use cairn_wire::meta::*;

const BLOCK: u64 = 4096;
const SET_LAYOUT: u32 = 1 << 8;

fn staged() -> Layout {
    "r3>rs-3-2@1h".parse().expect("a layout")
}

fn driver() -> Driver {
    let mut d = Driver::new();
    d.set_feature_level(12);
    let layout = staged().to_bits();
    d.setattr(SetattrRequest { inode: ROOT, valid: SET_LAYOUT, layout, ..Default::default() }).expect("set");
    d
}

fn stage(d: &Driver, inode: u64) -> Stage {
    Layout::from_bits(d.getattr(inode).expect("there").layout).expect("a layout").stage()
}

/// What waits, before and after a restart.
fn waiting(d: &Driver) -> Vec<u64> {
    let of = |namespace: &cairn_meta_core::Namespace| {
        let (files, rest) = namespace.staged_files(0, 1000);
        assert!(rest.is_none());
        let files: Vec<u64> = files.iter().map(|file| file.inode).collect();
        files
    };
    let files = of(&d.namespace);
    assert_eq!(of(&d.restored()), files, "after a restart");
    d.check();
    files
}

fn encoded(d: &mut Driver, inode: u64, version: u64, stage: Stage) -> Answer<Attributes> {
    let layout = staged().in_stage(stage).to_bits();
    d.publish_with(PublishRequest { inode, if_data_version: version, layout, keep_mtime: true, ..Default::default() })
}

/// A file would never be encoded, or be looked at for ever; or one that was written since count as encoded.
#[test]
fn the_list_has_what_waits_and_nothing_else() {
    let mut d = driver();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    assert_eq!(waiting(&d), [], "nothing is stored");
    let a = d.publish(file, &[extent(0, 4 * BLOCK, 1, 0)]).unwrap();
    assert_eq!((waiting(&d), stage(&d, file)), (vec![file], Stage::Copies));
    let one = d.namespace.staged_file(file).expect("it waits");
    assert_eq!((one.bytes, one.pg, one.durable, one.after.to_string()), (4 * BLOCK, 7, true, "1h".into()));
    d.now += 1000;
    let b = encoded(&mut d, file, a.data_version, Stage::Encoded).unwrap();
    assert_eq!((waiting(&d), stage(&d, file)), (vec![], Stage::Encoded));
    assert_eq!((b.ctime_ns, b.mtime_ns), (a.ctime_ns, a.mtime_ns), "no time of the file's changes");
    // Whatever changes it brings it back, to rows that are looked at again.
    d.publish(file, &[extent(4 * BLOCK, BLOCK, 2, 0)]).unwrap();
    assert_eq!((waiting(&d), stage(&d, file)), (vec![file], Stage::Changed));
    let now = d.truncate(file, 3 * BLOCK).unwrap();
    assert_eq!(stage(&d, file), Stage::Changed);
    encoded(&mut d, file, now.data_version, Stage::Kept).unwrap();
    assert_eq!((waiting(&d), stage(&d, file)), (vec![], Stage::Kept));
    d.punch(PunchRequest { inode: file, offset: BLOCK, length: BLOCK, ..Default::default() }).unwrap();
    assert_eq!((waiting(&d), stage(&d, file)), (vec![file], Stage::Copies), "what was kept is of copies");
    // Not by a change of attributes alone.
    let now = d.chmod(file, 0o600).unwrap();
    encoded(&mut d, file, now.data_version, Stage::Encoded).unwrap();
    d.chmod(file, 0o640).unwrap();
    assert_eq!(waiting(&d), []);
    // Nothing is left of it.
    d.truncate(file, 0).unwrap();
    assert_eq!((waiting(&d), stage(&d, file)), (vec![], Stage::Copies));
    d.publish(file, &[extent(0, BLOCK, 3, 0)]).unwrap();
    assert_eq!(waiting(&d), [file]);
    d.unlink(ROOT, "f").unwrap();
    assert_eq!(waiting(&d), []);
}

/// A conversion would leave a file in the list that has no later scheme, or not put one there that has.
#[test]
fn conversions_come_and_go() {
    let mut d = driver();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    let a = d.publish(file, &[extent(0, BLOCK, 1, 0)]).unwrap();
    let to = |d: &mut Driver, layout: &str, version| {
        let layout = layout.parse::<Layout>().expect("a layout").to_bits();
        d.publish_with(PublishRequest { inode: file, if_data_version: version, layout, ..Default::default() }).unwrap()
    };
    let b = to(&mut d, "r3", a.data_version);
    assert_eq!(waiting(&d), []);
    to(&mut d, "r2>rs-6-3", b.data_version);
    assert_eq!(waiting(&d), [file]);
    // Somebody else wrote meanwhile.
    assert_eq!(encoded(&mut d, file, a.data_version, Stage::Encoded).map(|_| ()), Err(E::Conflict));
    assert_eq!(waiting(&d), [file]);
}

/// New files would begin as encoded ones, because they were made with the layout of one.
#[test]
fn what_is_new_is_in_the_first_stage() {
    let mut d = driver();
    let layout = staged().in_stage(Stage::Encoded).to_bits();
    let request = CreateRequest { parent: ROOT, name: b"f".into(), mode: 0o644, layout, ..Default::default() };
    let file = d.create_with(request).unwrap();
    assert_eq!(file.layout, staged().to_bits());
    let set = d.setattr(SetattrRequest { inode: ROOT, valid: SET_LAYOUT, layout, ..Default::default() }).unwrap();
    assert_eq!(set.layout, staged().to_bits());
    assert_eq!(d.mkdir(ROOT, "d", 0o755).unwrap().layout, staged().to_bits());
}

/// A clone would be taken for copies although it names rows, so that its rows are never given back, or for rows
/// although it names copies.
#[test]
fn clones_are_in_the_stage_of_what_they_share() {
    let mut d = driver();
    let source = d.create(ROOT, "s", 0o644).unwrap().inode;
    let a = d.publish(source, &[extent(0, 4 * BLOCK, 1, 0)]).unwrap();
    let [copies, rows] = ["a", "b"].map(|name| d.create(ROOT, name, 0o644).unwrap().inode);
    let clone = |d: &mut Driver, inode: u64, offset: u64| {
        let request = CloneRangeRequest { source, inode, offset, length: 4 * BLOCK, ..Default::default() };
        d.clone_range(request).unwrap().length
    };
    assert_eq!((clone(&mut d, copies, 0), stage(&d, copies)), (4 * BLOCK, Stage::Copies));
    let now = d.namespace.staged_file(source).map(|_| a.data_version + 1).expect("it waits");
    encoded(&mut d, source, now, Stage::Encoded).unwrap();
    assert_eq!((clone(&mut d, rows, 0), stage(&d, rows)), (4 * BLOCK, Stage::Changed));
    assert_eq!(clone(&mut d, copies, 4 * BLOCK), 0, "what is kept otherwise is copied");
    assert_eq!(waiting(&d), [copies, rows]);
    // Out of a snapshot the same: a restored tree would take all its bytes anew.
    d.set_feature_level(13);
    assert!(d.create_snapshot("then").expect("nothing is waited for").number > 0);
    let then = d.resolve(ROOT, ".snapshots/then/s").expect("resolved").attributes.expect("a file").inode;
    let back = d.create(ROOT, "back", 0o644).unwrap().inode;
    let request = CloneRangeRequest { source: then, inode: back, length: 4 * BLOCK, ..Default::default() };
    assert_eq!(d.clone_range(request).unwrap().length, 4 * BLOCK);
    assert_eq!(stage(&d, back), Stage::Changed);
    assert_eq!(waiting(&d), [copies, rows, back]);
}

/// Members of a version of before would come to another state from the same log.
#[test]
fn nothing_is_noted_before_all_members_understand_it() {
    let mut d = Driver::new();
    d.set_feature_level(10);
    let layout = staged().to_bits();
    let refused = d.setattr(SetattrRequest { inode: ROOT, valid: SET_LAYOUT, layout, ..Default::default() });
    assert_eq!(refused.map(|_| ()), Err(E::BadLayout), "with a time");
    // As a version of before took it.
    let layout = "r3>rs-3-2".parse::<Layout>().expect("a layout").to_bits();
    let request = CreateRequest { parent: ROOT, name: b"f".into(), mode: 0o644, layout, ..Default::default() };
    let file = d.create_with(request).unwrap().inode;
    d.publish(file, &[extent(0, BLOCK, 1, 0)]).unwrap();
    assert_eq!((waiting(&d), d.namespace.staged_count()), (vec![], 0));
    d.set_feature_level(12);
    d.publish(file, &[extent(BLOCK, BLOCK, 2, 0)]).unwrap();
    assert_eq!(waiting(&d), [file], "when it is written next");
}
