//! Volumes, made and deleted with their meta partitions, and what is set of each.
//!
//! Deleting a volume marks it deleted (its name is free again at once), marks its partitions removed (their members
//! stop serving and drop them) and retires its placement groups under a new epoch: clients are fenced off, and data
//! nodes drop the chunks once they have stored the retirement durably. It cannot be undone.
//!
//! A volume in the trash keeps everything, its name, its partitions and its groups, which go on being repaired and
//! scrubbed; but meta nodes serve nobody in it. It is restored as it was, or deleted; when its time is over that is the
//! leader's to say, and not before the end that the setting named when it was put there. Not here: the partitions that
//! a volume is made of (`volume_partitions.rs`).
use super::Outcome;
use crate::change::ItemKey;
use crate::command::{CreateVolume, DeleteVolume, RestoreVolume, SetVolume, TrashVolume};
use crate::config::{Key, known_layout, layout_flaw};
use crate::items::{Volume, volume_name_flaw};
use crate::state::State;
use crate::volume_settings::VolumeSettings;
use cairn_types::{ErrorCode, PartitionId, PgId, VolumeId, WallTime};
use cairn_wire::error::WireError;
use std::sync::Arc;

impl State {
    pub(super) fn create_volume(&mut self, time: WallTime, command: &CreateVolume) -> Result<Outcome, WireError> {
        let name = command.name.as_str();
        if let Some(flaw) = volume_name_flaw(name) {
            let shown: String = name.chars().take(80).collect();
            let text = format!("{shown:?} cannot be a volume's name: {flaw}");
            return Err(WireError::new(ErrorCode::InvalidArgument, text));
        }
        if let Some(volume) = self.volume_by_name(name) {
            if volume.trashed.is_some() {
                let text = format!(
                    "there is a volume {name} in the trash, which keeps its name: `cairn admin volume restore {name}`, or `cairn admin \
                     volume purge {name}` and repeat"
                );
                return Err(WireError::new(ErrorCode::Exists, text));
            }
            return Err(WireError::new(ErrorCode::Exists, format!("there is a volume {name} already")));
        }
        let layout = match command.layout {
            0 => self.config.default_layout(),
            bits => known_layout(bits, self.level)
                .ok_or_else(|| WireError::new(ErrorCode::BadLayout, "the layout is not one of this version"))?,
        };
        if let Some(flaw) = layout_flaw(layout, self.level) {
            return Err(WireError::new(ErrorCode::BadLayout, flaw));
        }
        let count = command.partitions.max(1);
        let members = self.members_of_partitions(count, &command.members)?;
        let id = VolumeId(self.next.volume);
        self.next.volume += 1;
        let (name, settings) = (name.to_string(), VolumeSettings::default());
        let volume = Volume {
            id,
            name,
            layout,
            deleted: false,
            trashed: None,
            created: time,
            version: 0,
            settings,
            ranges_from: 0,
        };
        self.volumes.insert(id, Arc::new(volume));
        self.touch(ItemKey::Volume(id));
        self.make_partitions(id, members);
        Ok(Outcome::Volume(id))
    }

    pub(super) fn set_volume(&mut self, command: &SetVolume) -> Result<Outcome, WireError> {
        let Some(id) = self.volume_by_name(&command.name).map(|v| v.id) else {
            return Err(unknown_volume(&command.name));
        };
        let items = command.items.iter().map(|item| (item.key.as_str(), item.value.as_str()));
        let volume = Arc::make_mut(self.volumes.get_mut(&id).expect("just found"));
        if let Err(mistakes) = volume.settings.set(items) {
            return Ok(Outcome::Mistakes(mistakes));
        }
        self.touch(ItemKey::Volume(id));
        Ok(Outcome::Done)
    }

    /// Whether a volume's data is private may follow from the cluster's setting: the map tells it when that changes.
    pub(super) fn touch_volumes_if(&mut self, private_before: u64) {
        if self.config.number(Key::PrivateData) == private_before {
            return;
        }
        let volumes: Vec<VolumeId> = self.volumes.values().filter(|volume| !volume.deleted).map(|v| v.id).collect();
        volumes.into_iter().for_each(|id| self.touch(ItemKey::Volume(id)));
    }

    /// What is promised, by the setting as it is now, stays: it may be lengthened, never shortened.
    pub(super) fn trash_volume(&mut self, time: WallTime, command: &TrashVolume) -> Result<Outcome, WireError> {
        let name = &command.name;
        let volume = self.volume_by_name(name).ok_or_else(|| unknown_volume(name))?;
        if volume.trashed.is_some() {
            return Err(in_trash(name));
        }
        let (id, expiry) = (volume.id, self.config.duration(Key::TrashExpiry).as_nanos() as u64);
        self.trash_promises.insert(id, WallTime(time.0.max(1).saturating_add(expiry)));
        // 0 is "not in the trash" on disk.
        self.set_trashed(id, Some(WallTime(time.0.max(1))))
    }

    pub(super) fn restore_volume(&mut self, command: &RestoreVolume) -> Result<Outcome, WireError> {
        let name = &command.name;
        let volume = self.volume_by_name(name).ok_or_else(|| unknown_volume(name))?;
        if volume.trashed.is_none() {
            return Err(not_in_trash(name));
        }
        let id = volume.id;
        self.trash_promises.remove(&id);
        self.set_trashed(id, None)
    }

    fn set_trashed(&mut self, id: VolumeId, since: Option<WallTime>) -> Result<Outcome, WireError> {
        Arc::make_mut(self.volumes.get_mut(&id).expect("just found")).trashed = since;
        self.touch(ItemKey::Volume(id));
        Ok(Outcome::Volume(id))
    }

    pub(super) fn delete_volume(
        &mut self,
        command: &DeleteVolume,
        raised: &mut Vec<PgId>,
    ) -> Result<Outcome, WireError> {
        let Some((id, trashed)) = self.volume_by_name(&command.name).map(|v| (v.id, v.trashed)) else {
            return Err(unknown_volume(&command.name));
        };
        if command.trashed_ns != 0 && trashed != Some(WallTime(command.trashed_ns)) {
            let text = format!("volume {} was taken out of the trash meanwhile: nothing was deleted", command.name);
            return Err(WireError::new(ErrorCode::Conflict, text));
        }
        let volume = Arc::make_mut(self.volumes.get_mut(&id).expect("just found"));
        (volume.deleted, volume.trashed) = (true, None);
        self.trash_promises.remove(&id);
        self.touch(ItemKey::Volume(id));
        let partitions: Vec<PartitionId> = self.partitions().filter(|p| p.volume == id).map(|p| p.id).collect();
        for partition in partitions {
            let item = Arc::make_mut(self.partitions.get_mut(&partition).expect("just listed"));
            item.removed = true;
            item.target.clear();
            self.touch(ItemKey::Partition(partition));
        }
        let pgs: Vec<PgId> = self.pgs().filter(|p| p.volume == id && !p.retired).map(|p| p.id).collect();
        for pg in pgs {
            Arc::make_mut(self.pgs.get_mut(&pg).expect("just listed")).retire();
            self.touch(ItemKey::Pg(pg));
            raised.push(pg);
        }
        Ok(Outcome::Volume(id))
    }
}

/// It is in the trash.
pub fn in_trash(name: &str) -> WireError {
    let text = format!(
        "volume {name} is in the trash and serves nobody; `cairn admin volume restore {name}` brings it back, `cairn admin volume purge \
         {name}` deletes it for good"
    );
    WireError::new(ErrorCode::Conflict, text)
}

/// It is not.
pub fn not_in_trash(name: &str) -> WireError {
    let text = format!("volume {name} is not in the trash; `cairn admin volume ls` shows which are");
    WireError::new(ErrorCode::Conflict, text)
}

/// "There is no such volume."
pub fn unknown_volume(name: &str) -> WireError {
    let shown: String = name.chars().take(80).collect();
    let text = format!("there is no volume {shown:?}; `cairn admin volume ls` shows those that exist");
    WireError::new(ErrorCode::UnknownVolume, text)
}
