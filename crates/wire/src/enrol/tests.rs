//! What a machine and an authority say to each other: what is read, and what is not.
use super::*;

fn proven() -> Proven {
    Proven { public_key: [3; 32], proof: [5; 64] }
}

/// A machine of another build would be refused, or understood as something else.
#[test]
fn messages_have_the_bytes_that_the_page_says() {
    let renew = encode_asked(&Asked::Renew(proven()));
    let golden = [&[102, 0, 0, 0, 0x12, 100, 0x0a, 32][..], &[3; 32], &[0x12, 64], &[5; 64]].concat();
    assert_eq!(renew, golden);
    let enrol = encode_asked(&Asked::Enrol([7; 16], proven(), None));
    let golden =
        [&[120, 0, 0, 0, 0x0a, 118, 0x0a, 16][..], &[7; 16], &[0x12, 32], &[3; 32], &[0x1a, 64], &[5; 64]].concat();
    assert_eq!(enrol, golden);
    assert_eq!(encode_answer(&Ok(vec![9, 9])), [4, 0, 0, 0, 0x0a, 2, 9, 9]);
    assert_eq!(encode_answer(&Err("no".to_owned())), [4, 0, 0, 0, 0x12, 2, b'n', b'o']);
}

/// A request of other lengths would be signed, or a long one be read as far as memory goes.
#[test]
fn only_whole_requests_are_taken() {
    let place = Place { roles: Roles::MANAGER.with(Roles::DATA), member: 3 };
    let enrols = [None, Some(place)].map(|place| Asked::Enrol([7; 16], proven(), place));
    for asked in enrols.into_iter().chain([Asked::Renew(proven())]) {
        let bytes = encode_asked(&asked);
        let (head, message) = bytes.split_at(LENGTH_LEN);
        assert_eq!(length(head.try_into().expect("four")), Some(message.len()));
        assert_eq!(decode_asked(message).as_ref(), Some(&asked));
        for cut in 0..message.len() {
            assert_eq!(decode_asked(&message[..cut]), None);
        }
        // One field is a byte shorter or longer than it has to be.
        for field in [&[3u8; 31][..], &[3; 33], &[]] {
            let renew = messages::Renew { public_key: field.to_vec(), proof: vec![5; 64] };
            let request = messages::Request { asked: Some(messages::request::Asked::Renew(renew)) };
            assert_eq!(decode_asked(&request.encode_to_vec()), None);
        }
    }
    assert_eq!(decode_asked(&[]), None);
    assert_eq!(length((MESSAGE_MAX as u32 + 1).to_le_bytes()), None);
    assert_eq!(length([0xff; 4]), None);
    for bad in [
        messages::Answer::default(),
        messages::Answer { certificate: vec![1], refused: "both".to_owned() },
        messages::Answer { certificate: Vec::new(), refused: "x".repeat(WHY_MAX + 1) },
    ] {
        assert_eq!(decode_answer(&bad.encode_to_vec()), None);
    }
    let said = messages::Answer { certificate: Vec::new(), refused: "a\x1b[2Jb\n".to_owned() };
    assert_eq!(decode_answer(&said.encode_to_vec()), Some(Err("a [2Jb ".to_owned())), "nothing for a terminal");
}

/// A token that was cut or changed on the way to the machine would be taken for one, or a secret be seen in a log.
#[test]
fn tokens_have_one_text() {
    let token = JoinToken { fingerprint: [0xab; 32], secret: [0x0f; 16] };
    let text = token.text();
    assert_eq!(text, format!("cairn1_{}_{}", "ab".repeat(32), "0f".repeat(16)));
    assert_eq!(JoinToken::parse(&text).as_ref(), Some(&token));
    for cut in 0..text.len() {
        assert!(JoinToken::parse(&text[..cut]).is_none());
    }
    for bad in [text.to_uppercase(), format!("{text}0"), format!(" {text}"), text.replace("cairn1", "cairn2")] {
        assert!(JoinToken::parse(&bad).is_none(), "{bad}");
    }
    let shown = format!("{token:?} {:?}", Asked::Enrol([0x0f; 16], proven(), None));
    assert!(!shown.contains("0f") && !shown.contains("15"), "{shown}");
}

/// A committed input would bring a decoder down.
#[test]
fn the_corpus_of_enrolments_is_decoded() {
    let corpus: [&[u8]; 9] = [
        include_bytes!("corpus/enrol"),
        include_bytes!("corpus/renew"),
        include_bytes!("corpus/both"),
        include_bytes!("corpus/short_key"),
        include_bytes!("corpus/certificate"),
        include_bytes!("corpus/refused"),
        include_bytes!("corpus/escape"),
        include_bytes!("corpus/token"),
        include_bytes!("corpus/length"),
    ];
    corpus.into_iter().for_each(fuzz_enrol);
    // And what is near to it.
    for (at, input) in corpus.iter().flat_map(|input| (0..input.len()).map(move |at| (at, *input))) {
        let mut bent = input.to_vec();
        bent[at] ^= 0x11;
        fuzz_enrol(&bent);
        fuzz_enrol(&input[..at]);
    }
}
