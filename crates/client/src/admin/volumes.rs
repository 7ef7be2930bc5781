//! Volumes: making them, deleting them, and the trash in between.
use crate::connect::Client;
use crate::error::Result;
use crate::malformed::Malformed;
use crate::map::VolumeEntry;
use cairn_types::Layout;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::manager::{
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, PurgeVolumeRequest, RestoreVolumeRequest,
};

impl Client {
    /// Makes a volume of so many meta partitions; without a layout its root has the cluster's. The number of partitions
    /// that it got: managers of before make one.
    pub async fn create_volume(
        &self,
        what: &str,
        name: &str,
        layout: Option<Layout>,
        partitions: u32,
    ) -> Result<(VolumeEntry, usize)> {
        let (name, layout) = (name.to_owned(), layout.map_or(0, Layout::to_bits));
        let request = CreateVolumeRequest { name, layout, partitions: Some(partitions) };
        let found: CreateVolumeResponse = self.manager(what, Opcode::CreateVolume, &request).await?;
        let volume = found.volume.ok_or_else(|| Malformed::Missing("volume").of(what))?;
        let own = |partition: &&cairn_wire::manager::Partition| partition.volume == volume.id && !partition.removed;
        let made = found.map.iter().flat_map(|map| &map.partitions).filter(own).count();
        Ok((VolumeEntry::of_wire(volume), made))
    }
    /// An empty volume is deleted at once. With `force` a volume goes to the trash with its contents, for the time that
    /// the cluster is set to.
    pub async fn delete_volume(&self, what: &str, name: &str, force: bool) -> Result<()> {
        let request = DeleteVolumeRequest { name: name.to_owned(), force };
        self.manager::<Empty>(what, Opcode::DeleteVolume, &request).await.map(|_| ())
    }
    /// Takes it out of the trash, as it was.
    pub async fn restore_volume(&self, what: &str, name: &str) -> Result<()> {
        let request = RestoreVolumeRequest { name: name.to_owned() };
        self.manager::<Empty>(what, Opcode::RestoreVolume, &request).await.map(|_| ())
    }
    /// Deletes a volume that is in the trash for good.
    pub async fn purge_volume(&self, what: &str, name: &str) -> Result<()> {
        let request = PurgeVolumeRequest { name: name.to_owned() };
        self.manager::<Empty>(what, Opcode::PurgeVolume, &request).await.map(|_| ())
    }
}
