//! Checkpoints: golden header, whole state, damaged and missing pages.
use crate::driver::*;
use cairn_meta_core::{NamespaceBuilder, RestoreError};

fn busy() -> Driver {
    let mut d = Driver::new();
    for i in 0..500 {
        let file = d.create(ROOT, &format!("file-{i}"), 0o644).unwrap().inode;
        d.publish(file, &[extent(0, 5000, i, 0)]).unwrap();
    }
    for session in 2..40 {
        d.session = session;
        d.mkdir(ROOT, &format!("d{session}"), 0o755).unwrap();
    }
    d.expire(&[3, 4, 700]);
    d.unlink(ROOT, "file-3").unwrap();
    d
}

/// A change of the header makes existing checkpoints unreadable.
#[test]
fn golden_header() {
    let d = Driver::new();
    let pages = d.pages();
    let mut header = vec![1];
    header.extend_from_slice(b"CAIRNNSP");
    header.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0]);
    header.extend_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
    for field in [u64::MAX, 2, 1, 0, 1000, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0] {
        header.extend_from_slice(&field.to_le_bytes());
    }
    assert_eq!(pages[0], header);
    let mut end = vec![5];
    for count in [1u64, 0, 0] {
        end.extend_from_slice(&count.to_le_bytes());
    }
    assert_eq!(pages.last().unwrap(), &end);
}

/// A build from before levels would read it and leave out what it does not know, instead of refusing.
#[test]
fn a_feature_level_makes_another_version() {
    let mut d = Driver::new();
    let plain = d.pages()[0].clone();
    d.set_feature_level(3);
    d.set_feature_level(2);
    let header = d.pages()[0].clone();
    assert_eq!((&header[9..16], &plain[9..16]), (&[2u8, 0, 3, 0, 0, 0, 0][..], &[1u8, 0, 0, 0, 0, 0, 0][..]));
    assert_eq!(header[16..48], plain[16..48]);
    assert_eq!(restore(&d.pages()).feature_level(), 3);
    for at in 9..16 {
        let mut other = header.clone();
        other[at] = if at == 11 { 0 } else { 1 };
        let refused = matches!(NamespaceBuilder::new().push_page(&other), Err(RestoreError::NotANamespace(_)));
        assert_eq!(refused, at != 12, "byte {at}");
    }
}

/// The snapshot is the state at its moment, whatever happens while it is written.
#[test]
fn a_snapshot_does_not_change() {
    let mut d = busy();
    let snapshot = d.namespace.snapshot();
    let before: Vec<Vec<u8>> = snapshot.pages(9000).collect();
    let names = d.names(ROOT);
    d.session = 5;
    for i in 100..300 {
        d.unlink(ROOT, &format!("file-{i}")).unwrap();
    }
    let after: Vec<Vec<u8>> = snapshot.pages(9000).collect();
    assert_eq!(before, after);
    let restored = Driver::on(restore(&after));
    restored.check();
    assert_eq!(restored.names(ROOT), names);
    assert_eq!(restored.namespace.live_sessions().count(), 37);
    assert!(restored.namespace.memory_bytes() > 0);
}

/// Damage in tree pages is found, and damage anywhere does no harm to the program.
#[test]
fn damaged_pages_are_refused() {
    let pages = busy().pages();
    let mut refused = 0;
    for (number, page) in pages.iter().enumerate() {
        for at in (0..page.len()).step_by(1 + page.len() / 400) {
            let mut damaged = page.clone();
            damaged[at] ^= 1 << (at % 8);
            let mut builder = NamespaceBuilder::new();
            let earlier = pages[..number].iter().try_for_each(|page| builder.push_page(page));
            assert_eq!(earlier, Ok(()));
            let result = builder.push_page(&damaged);
            refused += u32::from(result.is_err());
            if page[0] == 4 {
                assert!(result.is_err(), "a flipped bit in byte {at} of tree page {number}");
            }
        }
    }
    assert!(refused > 500, "{refused} damaged pages were found");
}

/// A checkpoint with a missing, repeated or foreign page is taken for a whole one.
#[test]
fn incomplete_checkpoints_are_refused() {
    let pages = busy().pages();
    assert!(pages.len() > 5);
    for missing in 0..pages.len() {
        let mut builder = NamespaceBuilder::new();
        let mut rest = pages.clone();
        rest.remove(missing);
        let pushed = rest.iter().try_for_each(|page| builder.push_page(page));
        assert!(pushed.and_then(|()| builder.finish().map(|_| ())).is_err(), "without page {missing}");
    }
    let mut builder = NamespaceBuilder::new();
    assert!(matches!(builder.push_page(&[]), Err(RestoreError::Malformed { .. })));
    let mut builder = NamespaceBuilder::new();
    let other_version: Vec<u8> = pages[0].iter().enumerate().map(|(i, b)| if i == 9 { 2 } else { *b }).collect();
    assert!(matches!(builder.push_page(&other_version), Err(RestoreError::NotANamespace(_))));
}
