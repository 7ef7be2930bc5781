//! Checks of a volume by its meta partition, for operators.
use super::Volume;
use crate::error::Result;
use cairn_types::InodeId;
use cairn_wire::Opcode;
use cairn_wire::meta::{FsckRequest, FsckResponse};

impl Volume {
    /// Starts a check of the volume, or asks how one goes on; see the messages. The header is filled in here. Only root may.
    pub async fn fsck(&self, request: FsckRequest) -> Result<FsckResponse> {
        let partition = self.caller.partition_of(InodeId::ROOT.0).await?;
        let header = Some(self.caller.read_header(partition));
        let what = format!("check of volume {}", self.name());
        self.caller.read(&what, partition, Opcode::Fsck, FsckRequest { header, ..request }).await
    }
}
