//! Checks of a volume by its meta partitions, for operators.
use super::Volume;
use crate::error::Result;
use cairn_types::InodeId;
use cairn_wire::Opcode;
use cairn_wire::meta::{FsckRequest, FsckResponse};

impl Volume {
    /// Starts a check of what the root's partition has, or asks how one goes on; see the messages. The header is filled
    /// in here. Only root may.
    pub async fn fsck(&self, request: FsckRequest) -> Result<FsckResponse> {
        let partition = self.caller.partition_of(InodeId::ROOT.0).await?;
        self.fsck_of(partition, request).await
    }
    /// The same of what another one has.
    pub async fn fsck_of(&self, partition: u32, request: FsckRequest) -> Result<FsckResponse> {
        let header = Some(self.caller.read_header(partition));
        let what = format!("check of volume {}, partition p{partition}", self.name());
        self.caller.read(&what, partition, Opcode::Fsck, FsckRequest { header, ..request }).await
    }
}
