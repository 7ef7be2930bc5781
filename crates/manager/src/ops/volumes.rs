//! CreateVolume, SetVolume, DeleteVolume, RestoreVolume and PurgeVolume.
//!
//! A volume counts as empty when the leaders of its partitions, in reports that began after the request, hold no
//! inode but the root. What is created in the very moment of the deletion goes with it.
//! With its contents a volume goes to the trash first, where the cluster has one; `duties/volume_trash.rs` empties it.
use super::config;
use crate::manager::Manager;
use cairn_manager_core::apply::{in_trash, not_in_trash, partitions_flaw, unknown_volume};
use cairn_manager_core::command::{
    Command, ConfigValue, CreateVolume, DeleteVolume, RestoreVolume, SetVolume, TrashVolume,
};
use cairn_manager_core::items::Volume;
use cairn_manager_core::map::volume_message;
use cairn_manager_core::wording::names_up_to;
use cairn_manager_core::{Key, Outcome, first_volume, partition_members, plan};
use cairn_types::{ErrorCode, Layout, NodeId, PartitionId, Time, VolumeId};
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::manager::{
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, PurgeVolumeRequest, RestoreVolumeRequest,
    SetConfigResponse, SetVolumeRequest,
};
use std::time::Duration;

/// How long a fresh report of a partition is waited for: a few heartbeats.
const REPORT_PATIENCE: Duration = Duration::from_secs(4);
const REPORT_PAUSE: Duration = Duration::from_millis(50);
/// Partitions named in an error.
const NAMED_MAX: usize = 10;

impl Manager {
    pub(crate) async fn create_volume(&self, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, WireError> {
        let partitions = request.partitions.unwrap_or(1);
        if let Some(flaw) = partitions_flaw(partitions) {
            return Err(WireError::new(ErrorCode::InvalidArgument, flaw));
        }
        let layout = self.look_in_cluster(|state, _| {
            let layout = match request.layout {
                0 => state.config().default_layout(),
                bits => Layout::from_bits(bits)
                    .ok_or_else(|| WireError::new(ErrorCode::BadLayout, "the layout is not one of this version"))?,
            };
            plan::check_layout(state, layout)?;
            match first_volume::too_few_metas(state) {
                Some(why) => Err(WireError::new(ErrorCode::Conflict, why)),
                None => Ok(layout),
            }
        })?;
        let volume = self.make_volume(request.name, layout, partitions).await?;
        // Its groups are there before its first file, if possible; else the first writer is told why not.
        if let Err(error) = self.ensure(volume.id, layout.pg_class()).await {
            tracing::info!(volume = %volume.name, %error, "the new volume has no placement groups yet");
        }
        let map = self.client_map(0, volume.id)?;
        let volume = self.look(|state, _| volume_message(&volume, state))?;
        Ok(CreateVolumeResponse { volume: Some(volume), map: Some(map) })
    }

    pub(crate) async fn make_volume(&self, name: String, layout: Layout, partitions: u32) -> Result<Volume, WireError> {
        // One is not written: entries look as they did before there could be more.
        let partitions = if partitions == 1 { 0 } else { partitions };
        let members = self.look_in_cluster(|state, leading| {
            let metas: Vec<NodeId> = state.nodes().map(|node| node.id).collect();
            partition_members::plan(state, &leading.soft, &metas, partitions.max(1))
        })?;
        let command = CreateVolume { name, layout: layout.to_bits(), partitions, members };
        let Outcome::Volume(id) = self.execute(Command::CreateVolume(command)).await? else {
            return Err(WireError::new(ErrorCode::Internal, "the creation of a volume came to something else"));
        };
        let volume = self.look(|state, _| state.volume(id).cloned())?;
        let volume = volume.ok_or_else(|| WireError::new(ErrorCode::Conflict, "the volume was deleted meanwhile"))?;
        tracing::info!(volume = %volume.name, id = %id, %layout, partitions = partitions.max(1), "volume made");
        Ok(volume)
    }

    pub(crate) async fn set_volume(&self, request: SetVolumeRequest) -> Result<SetConfigResponse, WireError> {
        let SetVolumeRequest { name, items } = request;
        let items = config::values(items)?;
        self.permit()?;
        self.check_private(&items)?;
        let told = items.clone();
        let outcome = self.execute(Command::SetVolume(SetVolume { name: name.clone(), items })).await?;
        let tell = |item: &ConfigValue| tracing::warn!(volume = %name, key = %item.key, value = %item.value, "setting changed");
        Ok(config::answer(outcome, || told.iter().for_each(tell)))
    }

    pub(crate) async fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<Empty, WireError> {
        let DeleteVolumeRequest { name, force } = request;
        let (volume, has_trash) = self.look_in_cluster(|state, _| {
            let volume = state.volume_by_name(&name).ok_or_else(|| unknown_volume(&name))?;
            match volume.trashed {
                Some(_) => Err(in_trash(&name)),
                None => Ok((volume.id, !state.config().duration(Key::TrashExpiry).is_zero())),
            }
        })?;
        if !force {
            self.check_empty(volume, &name).await?;
        } else if has_trash {
            self.execute(Command::TrashVolume(TrashVolume { name: name.clone() })).await?;
            tracing::warn!(volume = %name, id = %volume, "volume put into the trash");
            return Ok(Empty {});
        }
        self.execute(Command::DeleteVolume(DeleteVolume { name: name.clone(), trashed_ns: 0 })).await?;
        tracing::warn!(volume = %name, id = %volume, force, "volume deleted");
        Ok(Empty {})
    }

    pub(crate) async fn restore_volume(&self, request: RestoreVolumeRequest) -> Result<Empty, WireError> {
        let name = request.name;
        self.permit()?;
        self.execute(Command::RestoreVolume(RestoreVolume { name: name.clone() })).await?;
        tracing::warn!(volume = %name, "volume taken out of the trash");
        Ok(Empty {})
    }

    pub(crate) async fn purge_volume(&self, request: PurgeVolumeRequest) -> Result<Empty, WireError> {
        let name = request.name;
        let since = self.look_in_cluster(|state, _| {
            let volume = state.volume_by_name(&name).ok_or_else(|| unknown_volume(&name))?;
            volume.trashed.ok_or_else(|| not_in_trash(&name))
        })?;
        self.execute(Command::DeleteVolume(DeleteVolume { name: name.clone(), trashed_ns: since.0 })).await?;
        tracing::warn!(volume = %name, "volume deleted out of the trash");
        Ok(Empty {})
    }

    async fn check_empty(&self, volume: VolumeId, name: &str) -> Result<(), WireError> {
        let begin = self.now();
        let fresh = async {
            loop {
                let Inodes { count, silent } = self.inodes(volume, begin)?;
                if silent.is_empty() {
                    return Ok::<u64, WireError>(count);
                }
                tokio::time::sleep(REPORT_PAUSE).await;
            }
        };
        let Ok(inodes) = tokio::time::timeout(REPORT_PATIENCE, fresh).await else {
            let silent = self.inodes(volume, begin)?.silent;
            let text = format!(
                "volume {name} cannot be seen to be empty: no leader of {} reports how much it holds; \
                 repeat when it does, or put it into the trash with its contents by --yes",
                names_up_to(NAMED_MAX, silent.iter().map(PartitionId::to_string))
            );
            return Err(WireError::new(ErrorCode::Unavailable, text));
        };
        match inodes? {
            0 | 1 => Ok(()),
            inodes => {
                let text = format!(
                    "volume {name} is not empty: it holds {} files and directories; \
                     delete them first (what is in its trash counts: `cairn fs rm -r --skip-trash {name}:/.trash`), or put the volume \
                     into the trash with its contents by --yes",
                    inodes - 1
                );
                Err(WireError::new(ErrorCode::VolumeNotEmpty, text))
            }
        }
    }

    /// What the partitions of a volume hold that reported after `begin`.
    fn inodes(&self, volume: VolumeId, begin: Time) -> Result<Inodes, WireError> {
        self.look(|state, leading| {
            let mut found = Inodes::default();
            for id in state.partitions().filter(|p| p.volume == volume && !p.removed).map(|p| p.id) {
                let fresh = leading.partition_heard.get(&id).is_some_and(|at| *at > begin);
                match leading.soft.partitions.get(&id).filter(|_| fresh) {
                    Some(load) => found.count += load.report.inodes,
                    None => found.silent.push(id),
                }
            }
            found
        })
    }
}

/// What a volume holds.
#[derive(Default)]
struct Inodes {
    count: u64,
    /// Partitions whose leaders did not say how much they hold.
    silent: Vec<PartitionId>,
}
