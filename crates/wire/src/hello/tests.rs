//! Tests of the hello: golden bytes, negotiation, cluster ids, hostile bytes.

use super::*;
use proptest::prelude::*;

fn hello(min: u32, max: u32, cluster: u8) -> Hello {
    let mut hello = Hello::new(ClusterId([cluster; 16]), PeerKind::Client, NodeId(0));
    (hello.version_min, hello.version_max) = (min, max);
    hello
}

/// A change of the fields would cut off every process of another version.
#[test]
fn golden_bytes() {
    let mut hello = hello(1, 2, 0xab);
    hello.kind = PeerKind::Server;
    hello.node = NodeId(300);
    hello.software = "cairn 9".into();
    let mut bytes = Vec::new();
    hello.encode(&mut bytes);
    let mut expected = vec![0x08, 1, 0x10, 2, 0x1a, 16];
    expected.extend([0xab; 16]);
    expected.extend([0x20, 2, 0x28, 0xac, 0x02, 0x32, 7]);
    expected.extend(b"cairn 9");
    assert_eq!(bytes, expected);
    assert_eq!(Hello::decode(&bytes), Ok(hello.clone()));
    bytes.extend([0x98, 0x06, 1]); // field 99 of a later version
    assert_eq!(Hello::decode(&bytes), Ok(hello), "fields of later versions are skipped");
}

/// Two versions without overlap would misread each other; N and N−1 must talk.
#[test]
fn negotiates_the_newest_common_version() {
    assert_eq!(hello(1, 2, 1).common_version(&hello(2, 3, 1)), Ok(2));
    assert_eq!(hello(2, 3, 1).common_version(&hello(1, 2, 1)), Ok(2));
    assert_eq!(hello(1, 1, 1).common_version(&hello(1, 1, 1)), Ok(1));
    let error = hello(1, 2, 1).common_version(&hello(3, 4, 1)).unwrap_err();
    assert!(error.to_string().contains("1 to 2") && error.to_string().contains("3 to 4"), "{error}");
}

/// A disk or client of another cluster would mix two clusters' data.
#[test]
fn wrong_cluster_names_both() {
    assert_eq!(hello(1, 1, 1).check_cluster(&hello(1, 1, 1)), Ok(()));
    assert_eq!(hello(1, 1, 0).check_cluster(&hello(1, 1, 1)), Ok(()));
    assert_eq!(hello(1, 1, 1).check_cluster(&hello(1, 1, 0)), Ok(()));
    let error = hello(1, 1, 1).check_cluster(&hello(1, 1, 2)).unwrap_err().to_string();
    assert!(error.contains("01010101-0101") && error.contains("02020202-0202"), "{error}");
}

/// Fields out of range would be trusted later.
#[test]
fn malformed_hellos_are_refused() {
    let encode = |change: fn(&mut HelloMessage)| {
        let mut bytes = Vec::new();
        hello(1, 1, 1).encode(&mut bytes);
        let mut message = HelloMessage::decode(&bytes[..]).unwrap();
        change(&mut message);
        Hello::decode(&message.encode_to_vec())
    };
    assert!(encode(|_| ()).is_ok());
    assert!(encode(|m| m.version_min = 0).is_err());
    assert!(encode(|m| m.version_min = 2).is_err());
    assert!(encode(|m| m.cluster.truncate(15)).is_err());
    assert!(encode(|m| m.kind = 9).is_err());
    assert!(encode(|m| m.software = "x".repeat(HELLO_MAX)).is_err());
    assert!(Hello::decode(&[0xff; 40]).is_err());
    let long = encode(|m| m.software = "é".repeat(100)).unwrap();
    assert_eq!(long.software, "é".repeat(32), "a long version text is cut between characters");
}

proptest! {
    /// No bytes panic the decoder, and what decodes survives a round trip.
    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0..64usize, value in any::<u8>()) {
        fuzz_hello(&bytes);
        let mut mutated = Vec::new();
        hello(1, 3, 5).encode(&mut mutated);
        let at = at % mutated.len();
        mutated[at] = value;
        fuzz_hello(&mutated);
    }
}
