//! Disks that have as many placement groups as one may have: nobody gets a new one any more.
use super::{Problems, names};
use crate::config::Key;
use crate::items::DiskState;
use crate::state::State;

/// With fewer disks than that, a volume of three copies gets no group.
const DISKS_MIN: usize = 3;

pub(super) fn used_up(state: &State, out: &mut Problems) {
    let most = state.config().number(Key::PgsPerDiskMax) as usize;
    let carried = |disk| state.pgs_of(disk).filter(|pg| !pg.retired).count();
    let disks = state.disks().filter(|disk| disk.state == DiskState::InService).map(|disk| disk.id);
    let (at_bound, able): (Vec<_>, Vec<_>) = disks.partition(|disk| carried(*disk) >= most);
    if !at_bound.is_empty() && able.len() < DISKS_MIN {
        out.warning(format!(
            "{} ({}) have {most} placement groups, the most that one may have (pgs_per_disk_max), and {} can get more: volumes that need new \
             groups are not written; add disks, delete volumes, or raise the setting (`cairn admin config set pgs_per_disk_max=N`)",
            if at_bound.len() == 1 { "1 disk".to_owned() } else { format!("{} disks", at_bound.len()) },
            names(at_bound.iter().map(ToString::to_string)),
            able.len(),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::tests::{cluster, ok};
    use crate::command::{Command, ConfigValue, CreatePgs, Disks, SetConfig};

    /// Writes would be refused in a cluster of which the status says that nothing is wrong.
    #[test]
    fn disks_that_take_no_more_groups_are_told() {
        let mut state = cluster(4);
        let told = |state: &State| {
            let mut out = Problems::default();
            used_up(state, &mut out);
            out.texts()
        };
        let groups = vec![Disks { disks: vec![1, 2, 3], ..Disks::default() }];
        ok(&mut state, Command::CreatePgs(CreatePgs { volume: 1, scheme: 3, groups }));
        assert!(told(&state).is_empty());
        let item = ConfigValue { key: "pgs_per_disk_max".into(), value: "1".into() };
        ok(&mut state, Command::SetConfig(SetConfig { items: vec![item] }));
        let said = told(&state);
        assert!(
            said.len() == 1 && said[0].contains("3 disks (d1, d2, d3) have 1") && said[0].contains("and 1 can"),
            "{said:?}"
        );
    }
}
