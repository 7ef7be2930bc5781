//! Deletes volumes for good whose time in the trash is over.
//!
//! It is over when a majority of the managers have clocks that say so: one that is ahead deletes nothing. A volume that
//! is restored at this moment stays: the command names since when it was in the trash.
use crate::manager::Manager;
use cairn_manager_core::State;
use cairn_manager_core::command::{Command, DeleteVolume};
use cairn_manager_core::items::Volume;
use cairn_types::WallTime;

impl Manager {
    pub(super) async fn empty_volume_trash(&self) {
        let Ok(log) = self.log() else { return };
        let voters = log.status().core.members.voters;
        let Some(reached) = self.raft.clocks().reached(&voters, self.clock.now(), self.clock.wall()) else {
            tracing::debug!("too few clocks are known to delete volumes");
            return;
        };
        for command in self.look(|state, _| due(state, reached)).unwrap_or_default() {
            let name = command.name.clone();
            if self.duty("the trash of volumes", Command::DeleteVolume(command)).await {
                tracing::warn!(volume = %name, "its time in the trash is over: volume deleted");
            }
        }
    }
}

/// What is to be deleted at a time.
fn due(state: &State, now: WallTime) -> Vec<DeleteVolume> {
    let over = |volume: &&Volume| state.trashed_until(volume).is_some_and(|until| until <= now);
    let all = state.volumes().filter(over).filter_map(|volume| Some((volume, volume.trashed?)));
    all.map(|(volume, since)| DeleteVolume { name: volume.name.clone(), trashed_ns: since.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_manager_core::Roles;
    use cairn_manager_core::command::{ConfigValue, CreateVolume, InitCluster, Register, SetConfig, TrashVolume};

    const HOUR: u64 = 3_600_000_000_000;

    /// A volume would go before its time, stay for ever, or go although it is in use.
    #[test]
    fn a_volume_goes_when_its_time_in_the_trash_is_over() {
        let mut state = State::new();
        let apply = |state: &mut State, at: u64, command: Command| {
            state.apply(WallTime(at), &command).outcome.expect("the command is accepted")
        };
        apply(&mut state, 1, Command::InitCluster(InitCluster { cluster: vec![9; 16], name: "test".into() }));
        let node = Register { uuid: vec![1; 16], roles: Roles::META.0, address: "a:1".into(), ..Register::default() };
        apply(&mut state, 1, Command::Register(node));
        for name in ["a", "b"] {
            apply(&mut state, 1, Command::CreateVolume(CreateVolume { name: name.into(), ..CreateVolume::default() }));
        }
        apply(&mut state, HOUR, Command::TrashVolume(TrashVolume { name: "a".into() }));
        let names = |state: &State, now: u64| due(state, WallTime(now)).into_iter().map(|c| c.name).collect::<Vec<_>>();
        assert_eq!(names(&state, 73 * HOUR - 1), Vec::<String>::new());
        assert_eq!(names(&state, 73 * HOUR), ["a"]);
        let set = |value: &str| {
            let item = ConfigValue { key: "trash_expiry".into(), value: value.into() };
            Command::SetConfig(SetConfig { items: vec![item] })
        };
        for value in ["5s", "0s"] {
            apply(&mut state, 2 * HOUR, set(value));
            assert_eq!(names(&state, 73 * HOUR - 1), Vec::<String>::new(), "{value}: what was promised is kept");
            assert_eq!(names(&state, 73 * HOUR), ["a"]);
        }
        apply(&mut state, 2 * HOUR, set("100h"));
        assert_eq!(names(&state, 73 * HOUR), Vec::<String>::new(), "a longer time counts for it too");
        let command = due(&state, WallTime(101 * HOUR)).remove(0);
        apply(&mut state, 101 * HOUR, Command::DeleteVolume(command));
        assert_eq!(names(&state, u64::MAX), Vec::<String>::new());
    }
}
