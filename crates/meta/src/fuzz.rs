//! For fuzzing: what hostile requests of a key with limits come to. They are read in place, and later decoded whole:
//! the two must not see different users, or other groups.
//!
//! Not here: the requests' meaning (meta-core).

use cairn_wire::Opcode;
use cairn_wire::common::{Credentials, Extent, StripeSet};
use cairn_wire::meta::{
    BatchRequest, CreateRequest, DiscardRequest, OpenAppendRequest, PublishAttributesRequest, PublishRequest,
    ReadStaleRequest,
};
use cairn_wire::rights::{NOBODY, Users};
use prost::Message;

use crate::header::fields;
use crate::{places, rights};

/// What is asked of keys with limits, or names groups.
const OPCODES: [Opcode; 14] = [
    Opcode::Lookup,
    Opcode::Readdir,
    Opcode::ReadStale,
    Opcode::Create,
    Opcode::Mkdir,
    Opcode::Setattr,
    Opcode::Publish,
    Opcode::PublishVolatile,
    Opcode::PublishAttributes,
    Opcode::Discard,
    Opcode::OpenAppend,
    Opcode::SetLock,
    Opcode::KeepAlive,
    Opcode::Batch,
];

fn users(number: u8) -> Option<Users> {
    match number % 4 {
        0 => Some(Users::Any),
        1 => Some(Users::NoRoot),
        2 => Some(Users::Nobody),
        _ => Users::only(vec![1000, 1001], vec![100]),
    }
}

/// The first byte says who asks for what, and the second whose key it is; the rest is the request.
#[doc(hidden)]
pub fn fuzz_requests(data: &[u8]) {
    let [opcode, whose, message @ ..] = data else { return };
    let opcode = OPCODES[usize::from(*opcode) % OPCODES.len()];
    let Some(users) = users(*whose) else { return };
    check_users(&users, opcode, message);
    check_groups(opcode, message);
}

/// Whoever decodes what was let in finds a user that the key allows, and finds it unchanged when it is judged again.
fn check_users(users: &Users, opcode: Opcode, message: &[u8]) {
    let Ok(renamed) = rights::renamed("eve", users, opcode, message) else { return };
    let inner = match opcode {
        Opcode::ReadStale => ReadStaleRequest::decode(&renamed[..]).expect("it was encoded").request,
        _ => renamed.clone(),
    };
    let headers = fields(&inner).expect("it was read").iter().filter(|(number, _)| *number == 1).count();
    assert_eq!(headers, 1, "{opcode:?} has several headers");
    let header = rights::OfHeader::decode(&inner[..]).expect("it was encoded").header.expect("there is one");
    if *users == Users::Any {
        return;
    }
    let who = header.who.expect("somebody");
    // A request in nobody's name is one of nobody, who owns nothing, also where the key says who it is for.
    let is_nobody = who == Credentials { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
    if !(is_nobody && matches!(users, Users::Only { .. })) {
        assert_eq!(users.judge(Some(who.clone())), Ok(Some(who)), "{opcode:?}");
        match rights::renamed("eve", users, opcode, &renamed) {
            Ok(again) => assert_eq!(again, renamed, "{opcode:?}"),
            Err(error) => panic!("{opcode:?} was let in and is refused: {error}"),
        }
    }
}

/// Every group that a decoder finds was found in place, too.
fn check_groups(opcode: Opcode, message: &[u8]) {
    let mut seen = Vec::new();
    // What cannot be read in place is refused.
    let Some(()) = places::each_group(opcode, message, &mut |pg| seen.push(pg)) else { return };
    let Some(named) = groups(opcode, message) else { return };
    assert!(named.iter().all(|pg| seen.contains(pg)), "{opcode:?} names {named:?}, and {seen:?} were found");
}

/// Those of a message that is decoded whole; `None`: it is none.
fn groups(opcode: Opcode, message: &[u8]) -> Option<Vec<u32>> {
    let of = |extents: &[Extent], sets: &[StripeSet]| {
        let columns = sets.iter().flat_map(|set| set.column_pgs.iter().copied().chain([set.pg]));
        extents.iter().map(|extent| extent.pg).chain(columns).collect::<Vec<u32>>()
    };
    let groups: Vec<u32> = match opcode {
        Opcode::Publish | Opcode::PublishVolatile => {
            let request = PublishRequest::decode(message).ok()?;
            of(&request.extents, &request.sets)
        }
        Opcode::PublishAttributes => {
            let request = PublishAttributesRequest::decode(message).ok()?.publish.unwrap_or_default();
            of(&request.extents, &request.sets)
        }
        Opcode::Create => {
            let request = CreateRequest::decode(message).ok()?;
            of(&request.extents, &request.sets)
        }
        Opcode::Discard => {
            let request = DiscardRequest::decode(message).ok()?;
            of(&request.extents, &request.sets)
        }
        Opcode::OpenAppend => vec![OpenAppendRequest::decode(message).ok()?.pg],
        Opcode::Batch => {
            let items = BatchRequest::decode(message).ok()?.items;
            let of_item = |code: u32, request: &[u8]| {
                let opcode = Opcode::from_code(u16::try_from(code).ok()?).filter(|code| *code != Opcode::Batch)?;
                groups(opcode, request)
            };
            items.iter().filter_map(|item| of_item(item.opcode, &item.request)).flatten().collect()
        }
        _ => return None,
    };
    // Absent numbers are zero, which is no group.
    Some(groups.into_iter().filter(|pg| *pg != 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A committed input would be seen as one thing by who lets it in, and as another by who carries it out.
    #[test]
    fn the_corpus_of_requests_is_judged() {
        let corpus: [&[u8]; 17] = [
            include_bytes!("fuzz/corpus/batch"),
            include_bytes!("fuzz/corpus/create_as_root"),
            include_bytes!("fuzz/corpus/cut"),
            include_bytes!("fuzz/corpus/discard"),
            include_bytes!("fuzz/corpus/group"),
            include_bytes!("fuzz/corpus/header_last"),
            include_bytes!("fuzz/corpus/lock"),
            include_bytes!("fuzz/corpus/lookup"),
            include_bytes!("fuzz/corpus/mkdir_that_asks"),
            include_bytes!("fuzz/corpus/nobody"),
            include_bytes!("fuzz/corpus/open_append"),
            include_bytes!("fuzz/corpus/publish"),
            include_bytes!("fuzz/corpus/publish_in_parts"),
            include_bytes!("fuzz/corpus/stale"),
            include_bytes!("fuzz/corpus/two_headers"),
            include_bytes!("fuzz/corpus/two_users"),
            include_bytes!("fuzz/corpus/wrong_type"),
        ];
        corpus.into_iter().for_each(fuzz_requests);
        // And what is near to it, as every operation and for every key.
        for (at, input) in corpus.iter().flat_map(|input| (0..input.len()).map(move |at| (at, *input))) {
            let mut bent = input.to_vec();
            bent[at] ^= 0x09;
            fuzz_requests(&bent);
            fuzz_requests(&input[..at]);
        }
        for (input, other) in corpus.iter().flat_map(|input| (0..=u8::MAX).map(move |other| (*input, other))) {
            let mut other_one = input.to_vec();
            (other_one[0], other_one[1]) = (other % 16, other / 16);
            fuzz_requests(&other_one);
        }
    }
}
