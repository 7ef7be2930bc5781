//! Volumes in the trash: kept, restored, deleted when nobody has restored them meanwhile.
use super::*;
use crate::map::volume_message;
use cairn_types::Layout;

fn delete(trashed_ns: u64) -> Command {
    Command::DeleteVolume(DeleteVolume { name: "default".into(), trashed_ns })
}

fn trash(state: &mut State, at: u64) -> Result<Outcome, WireError> {
    let applied = state.apply(WallTime(at), &Command::TrashVolume(TrashVolume { name: "default".into() }));
    state.check_invariants();
    assert!(applied.raised.is_empty(), "nobody is fenced off: it may come back as it was");
    applied.outcome
}

fn restore() -> Command {
    Command::RestoreVolume(RestoreVolume { name: "default".into() })
}

/// A slip would be for good; or what was put into the trash go with its copies, its name, or its place in the map.
#[test]
fn a_volume_in_the_trash_is_kept_as_it_was_and_comes_back() {
    let mut state = cluster(3);
    let before = state.clone();
    assert_eq!(refused(&mut state, restore()).code, ErrorCode::Conflict, "it is not in the trash");
    trash(&mut state, 5 * SECOND).expect("put into the trash");
    let volume = state.volume_by_name("default").expect("its name is kept").clone();
    assert_eq!(volume.trashed, Some(WallTime(5 * SECOND)));
    assert!(state.pgs().all(|pg| !pg.retired) && state.partitions().all(|p| !p.removed), "all that it has is kept");
    let told = volume_message(&volume, &state);
    assert_eq!(told.trashed_until_ns - told.trashed_ns, 72 * 3600 * SECOND, "the time of the trash");
    let delta = state.map(before.version(), Scope::All, &Soft::default());
    assert!(delta.volumes[0].trashed_ns == 5 * SECOND && !delta.volumes[0].deleted, "others hear of it");
    assert_eq!(state.map(0, Scope::All, &Soft::default()).volumes[0].trashed_ns, 5 * SECOND);

    assert_eq!(trash(&mut state, 6 * SECOND).expect_err("it is there").code, ErrorCode::Conflict);
    let create = Command::CreateVolume(CreateVolume { name: "default".into(), ..CreateVolume::default() });
    let error = refused(&mut state, create);
    assert!(error.code == ErrorCode::Exists && error.message.contains("volume restore default"), "{error}");
    let layout = "r2".parse::<Layout>().expect("a layout").to_bits();
    let job = StartJob { volume: volume.id.get(), path: b"/".to_vec(), layout, ..StartJob::default() };
    assert!(refused(&mut state, Command::StartJob(job)).message.contains("in the trash"));

    ok(&mut state, restore());
    assert_eq!(state.volume_by_name("default").expect("there").trashed, None);
    for told in ["volume default is in the trash", "volume default was restored"] {
        assert_eq!(state.events().filter(|event| event.text == told).count(), 1, "{told}");
    }
}

/// "For 72h it can be restored" would be taken back by a change of the setting, or by a manager that starts anew.
#[test]
fn the_time_that_was_promised_is_kept() {
    let mut state = cluster(3);
    let until = |state: &State| volume_message(state.volume_by_name("default").expect("there"), state).trashed_until_ns;
    let set = |value: &str| {
        let item = ConfigValue { key: "trash_expiry".into(), value: value.into() };
        Command::SetConfig(SetConfig { items: vec![item] })
    };
    let hours = |hours: u64| hours * 3600 * SECOND;
    ok(&mut state, set("10h"));
    trash(&mut state, 5 * SECOND).expect("put into the trash");
    let promised = 5 * SECOND + hours(10);
    for shorter in ["0s", "5s"] {
        ok(&mut state, set(shorter));
        assert_eq!(until(&state), promised, "{shorter}");
    }
    let mut reader = crate::checkpoint::Reader::new();
    crate::checkpoint::write(&state, |part| reader.feed(part)).expect("it is read while it is written");
    let again = reader.finish().expect("whole");
    assert_eq!((until(&again), &again), (promised, &state), "after a start as well");
    ok(&mut state, set("20h"));
    assert_eq!(until(&state), 5 * SECOND + hours(20), "a longer time counts for it too");
    // Another time in the trash is another promise.
    ok(&mut state, restore());
    assert_eq!(until(&state), 0);
    ok(&mut state, set("1h"));
    trash(&mut state, 7 * SECOND).expect("once more");
    assert_eq!(until(&state), 7 * SECOND + hours(1));
    ok(&mut state, delete(7 * SECOND));
    assert!(state.trash_promises.is_empty());
}

/// A volume whose time is over would be deleted although somebody has just restored it.
#[test]
fn only_what_is_still_in_the_trash_is_deleted() {
    let mut state = cluster(3);
    trash(&mut state, 5 * SECOND).expect("put into the trash");
    ok(&mut state, restore());
    assert_eq!(refused(&mut state, delete(5 * SECOND)).code, ErrorCode::Conflict);
    trash(&mut state, 7 * SECOND).expect("once more");
    assert_eq!(refused(&mut state, delete(5 * SECOND)).code, ErrorCode::Conflict, "that was another time");
    ok(&mut state, delete(7 * SECOND));
    assert!(state.volume_by_name("default").is_none() && state.partitions().all(|p| p.removed));
    assert_eq!(refused(&mut state, restore()).code, ErrorCode::UnknownVolume, "it is gone for good");
}
