//! Tokens and renewals: who gets a certificate, and who does not.
use super::*;
use crate::NewKey;
use crate::Validity;
use cairn_types::NodeId;
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::rights::{Access, Rights, Users};

fn wanted(name: &str, caller: Caller) -> Wanted {
    let (node, rights) = (NodeId(0), Rights::everything());
    Wanted { name: name.to_owned(), caller, node, life: 600, rights, again: false }
}

fn server(name: &str) -> Wanted {
    wanted(name, Caller::Node(Roles::DATA))
}

fn asked(result: Result<Issued, Denied>) -> String {
    match result {
        Err(Denied::Asker(why)) => why,
        Err(Denied::Failed(error)) => panic!("{error}"),
        Ok(issued) => panic!("{} got a certificate", issued.holder.name),
    }
}

fn names(authority: &Authority) -> Vec<String> {
    authority.issued().expect("the list").into_iter().map(|holder| holder.name).collect()
}

/// Whoever finds a token that was used would get a key with it; or a machine whose answer was lost would get none.
#[test]
fn a_token_is_good_for_the_first_key_that_comes_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
    let token = authority.invite(&server("data1"), TOKEN_LIFE).expect("a token");
    assert_eq!(token.fingerprint, authority.fingerprint());
    let (key, other) = (NewKey::generate().expect("a key").public(), NewKey::generate().expect("a key").public());
    let first = authority.enrol(&token.secret, &key, |_| Ok(())).expect("a certificate");
    assert_eq!(first.holder.to_string(), format!("cairn:1:node:data1:data:0:{}", first.holder.until));
    assert_eq!(crate::holder_of(&first.certificate).as_ref(), Some(&first.holder));
    assert!(asked(authority.enrol(&token.secret, &other, |_| Ok(()))).contains("revoke the name data1"));
    // Another process, which knows only what is on the disk.
    let again = Authority::open(authority.dir()).expect("opened");
    let second = again.enrol(&token.secret, &key, |_| Ok(())).expect("the same again");
    assert_eq!((second.certificate, second.holder), (first.certificate, first.holder));
    assert!(asked(again.enrol(&token.secret, &other, |_| Ok(()))).contains("was used at"));
    assert_eq!(names(&again), ["data1"], "it was given out once");
    // A secret that is nobody's, and one bit beside one that is.
    let mut near = token.secret;
    near[15] ^= 1;
    for secret in [[0; 16], near] {
        assert!(asked(authority.enrol(&secret, &other, |_| Ok(()))).contains("knows no such token"));
    }
    let kept = fs::read_dir(authority.dir().join(TOKENS)).expect("tokens").flatten();
    let texts: String = kept.map(|file| fs::read_to_string(file.path()).expect("text")).collect();
    assert!(!texts.contains(&to_hex(&token.secret)), "the directory does not tell secrets");
}

/// A token that was pasted on the wrong machine, or was given to the wrong person, would have to be looked for in the
/// directory by hand.
#[test]
fn a_token_is_refused_before_it_is_used_and_can_be_taken_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
    assert_eq!(authority.take_back("data1").expect("no tokens yet"), 0);
    let key = NewKey::generate().expect("a key").public();
    let other = NewKey::generate().expect("a key").public();
    let token = authority.invite(&server("data1"), TOKEN_LIFE).expect("a token");
    let wrong = |wanted: &Wanted| Err(format!("{} is not for this machine", wanted.name));
    assert_eq!(asked(authority.enrol(&token.secret, &other, wrong)), "data1 is not for this machine");
    assert!(names(&authority).is_empty());
    authority.enrol(&token.secret, &key, |_| Ok(())).expect("it is as good as before");
    assert_eq!(authority.take_back("data1").expect("taken"), 0, "it was used");
    authority.enrol(&token.secret, &key, wrong).expect("whose it is gets it again");

    let lost = authority.invite(&server("data2"), TOKEN_LIFE).expect("a token");
    let kept = authority.invite(&server("data3"), TOKEN_LIFE).expect("a token");
    assert_eq!(authority.take_back("data2").expect("taken"), 1);
    assert!(asked(authority.enrol(&lost.secret, &key, |_| Ok(()))).contains("knows no such token"));
    authority.enrol(&kept.secret, &key, |_| Ok(())).expect("another one's is good");
}

/// A token that lay around would let somebody in later, or take a name that is somebody else's by now.
#[test]
fn a_token_ends_and_takes_no_name_of_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
    let key = NewKey::generate().expect("a key").public();
    let ended = authority.invite(&server("late"), 0).expect("a token");
    assert!(asked(authority.enrol(&ended.secret, &key, |_| Ok(()))).contains("ended at"));
    let token = authority.invite(&wanted("alice", Caller::Client), TOKEN_LIFE).expect("a token");
    authority.issue(&wanted("alice", Caller::Client)).expect("made meanwhile");
    assert!(asked(authority.enrol(&token.secret, &key, |_| Ok(()))).contains("given out already"));
    assert!(matches!(authority.invite(&wanted("alice", Caller::Client), 9), Err(SecurityError::Name(_))));
    // A server whose disk is gone comes back under its name.
    authority.issue(&server("data1")).expect("a key");
    assert!(matches!(authority.invite(&server("data1"), 9), Err(SecurityError::Name(_))));
    let again = Wanted { again: true, ..server("data1") };
    let token = authority.invite(&again, TOKEN_LIFE).expect("a token");
    authority.enrol(&token.secret, &key, |_| Ok(())).expect("a certificate");
    authority.enrol(&token.secret, &key, |_| Ok(())).expect("the same again");
    assert_eq!(names(&authority), ["alice", "data1", "data1"]);
}

/// A machine whose authority died between its two writes would be refused for ever, or be in no list.
#[test]
fn a_token_that_was_bound_before_the_list_was_written_is_completed() {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
    let token = authority.invite(&server("data1"), TOKEN_LIFE).expect("a token");
    let key = NewKey::generate().expect("a key").public();
    let first = authority.enrol(&token.secret, &key, |_| Ok(())).expect("a certificate");
    fs::remove_file(authority.dir().join("issued")).expect("as before");
    let again = authority.enrol(&token.secret, &key, |_| Ok(())).expect("the same again");
    assert_eq!(again.certificate, first.certificate);
    assert_eq!(names(&authority), ["data1"]);
    // What was cut anywhere is no token, and says so.
    let place = authority.place(&token.secret);
    let text = fs::read_to_string(&place).expect("a token");
    for cut in (0..text.len() - 1).step_by(7) {
        write_secret(&place, &text[..cut], true).expect("cut");
        assert!(matches!(authority.enrol(&token.secret, &key, |_| Ok(())), Err(Denied::Failed(_))), "cut at {cut}");
    }
    for changed in [format!("{text}end\n"), text.replace("token 1", "token 2"), text.replace("key ", "key x")] {
        write_secret(&place, &changed, true).expect("changed");
        assert!(matches!(authority.enrol(&token.secret, &key, |_| Ok(())), Err(Denied::Failed(_))), "{changed}");
    }
}

/// A token would give other rights than it was made for.
#[test]
fn a_token_gives_what_it_was_made_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
    let volumes = vec![("docs".to_owned(), Access::Read)];
    let rights = Rights::in_volumes(volumes, Users::only(vec![1000], vec![100]).expect("users")).expect("rights");
    let all = [
        Wanted { rights, ..wanted("alice", Caller::Client) },
        wanted("ops", Caller::Admin),
        Wanted { node: NodeId(3), ..wanted("manager3", Caller::Node(Roles::MANAGER.with(Roles::META))) },
    ];
    for wanted in all {
        let token = authority.invite(&wanted, TOKEN_LIFE).expect("a token");
        let key = NewKey::generate().expect("a key");
        let issued = authority.enrol(&token.secret, &key.public(), |_| Ok(())).expect("a certificate");
        assert_eq!(issued.holder, wanted.holder(issued.holder.until - 600).expect("a holder"));
        let path = dir.path().join(&wanted.name);
        let text = key.file(&issued.holder, &issued.certificate, &[authority.certificate().clone()]);
        write_secret(&path, &text, false).expect("written");
        let file = crate::KeyFile::read(&path).expect("a key file");
        assert_eq!(*file.holder(), issued.holder);
        crate::Tls::of_client(&file).expect("the halves fit");
    }
}

/// A key would end although its holder renews it, its rights would grow with that, or the list without end.
#[test]
fn a_renewed_key_is_the_same_holders_for_as_long_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
    for name in ["data1", "data2"] {
        let token = authority.invite(&server(name), TOKEN_LIFE).expect("a token");
        authority
            .enrol(&token.secret, &NewKey::generate().expect("a key").public(), |_| Ok(()))
            .expect("a certificate");
    }
    let holder = authority.issued().expect("the list").swap_remove(0);
    let made = now() - 400;
    let key = || NewKey::generate().expect("a key").public();
    let sign = |holder: &Holder| authority.signer.certificate(holder, made, &key()).expect("a certificate");
    let mut present = sign(&Holder { until: made + 600, ..holder.clone() });
    assert_eq!(Validity::of(&present), Some(Validity { made, until: made + 600 }));
    for _ in 0..3 {
        let next = authority.renew(&present, &key()).expect("the next one");
        let validity = Validity::of(&next.certificate).expect("times");
        assert_eq!(validity.life(), 600);
        assert!(validity.made >= made + 400);
        assert_eq!(next.holder, Holder { until: validity.until, ..holder.clone() });
        // Whoever has it would make the authority write again and again.
        assert!(asked(authority.renew(&next.certificate, &key())).contains("and not before"));
        present = sign(&Holder { until: made + 600, ..next.holder });
    }
    for (name, caller) in [("alice", Caller::Client), ("ops", Caller::Admin)] {
        authority.issue(&wanted(name, caller)).expect("a key");
        let holder = authority.issued().expect("the list").pop().expect("a key");
        let why = asked(authority.renew(&sign(&Holder { until: made + 600, ..holder }), &key()));
        assert!(why.contains("only servers' are renewed"), "a key that was made for a time: {why}");
    }
    assert_eq!(names(&authority), ["data1", "data2", "alice", "ops"]);
    // What the authority never gave out like this.
    let holder = Holder { until: made + 600, ..holder };
    for other in [
        Holder { name: "data3".to_owned(), ..holder.clone() },
        Holder { caller: Caller::Node(Roles::ALL), ..holder.clone() },
        Holder { node: NodeId(17), ..holder },
    ] {
        let why = asked(authority.renew(&sign(&other), &key()));
        assert!(why.contains("gave no key") || why.contains("is not renewed"), "{why}");
    }
}

/// A name would be given out twice, or a renewal be refused as that of a key which nobody gave out.
#[test]
fn the_list_of_names_loses_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
    authority.issue(&server("data1")).expect("a key");
    authority.issue(&wanted("alice", Caller::Client)).expect("a key");
    let path = authority.dir().join("issued");
    let whole = fs::read_to_string(&path).expect("a list");
    // What was cut while it was added is nobody's, and the next line is one of its own.
    write_secret(&path, &format!("{whole}cairn:1:node:data2:da"), true).expect("written");
    authority.issue(&server("data3")).expect("a key");
    assert_eq!(names(&authority), ["data1", "alice", "data3"]);
    // A line of a later version is not lost, and nothing is given out that may be in it.
    let later = format!("{whole}cairn:9:node:data4\n");
    write_secret(&path, &later, true).expect("written");
    let refused = |error: SecurityError| assert!(error.to_string().contains("line 3 is none"), "{error}");
    refused(authority.issue(&server("data4")).expect_err("it may be in the list"));
    refused(authority.invite(&server("data5"), TOKEN_LIFE).expect_err("it may be in the list"));
    let made = now() - 400;
    let holder =
        Holder { until: made + 600, ..Holder::parse(whole.lines().next().expect("a line")).expect("a holder") };
    let key = || NewKey::generate().expect("a key").public();
    let present = authority.signer.certificate(&holder, made, &key()).expect("a certificate");
    assert!(matches!(authority.renew(&present, &key()), Err(Denied::Failed(SecurityError::List { .. }))));
    assert_eq!(fs::read_to_string(&path).expect("a list"), later);
}

/// What a process left half made would count as a token for ever.
#[test]
fn what_was_left_half_made_is_no_token() {
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
    authority.invite(&server("data1"), TOKEN_LIFE).expect("a token");
    let tokens = authority.dir().join(TOKENS);
    fs::write(tokens.join("00ff.new-7"), "cairn tok").expect("written");
    authority.invite(&server("data2"), TOKEN_LIFE).expect("a token");
    assert_eq!(fs::read_dir(tokens).expect("tokens").count(), 2);
}
