//! Checks of a volume by its meta partitions, for operators.
use super::Volume;
use crate::error::Result;
use crate::fsck::FsckProgress;
use cairn_wire::Opcode;
use cairn_wire::meta::FsckRequest;

impl Volume {
    /// Starts a check of what a partition has, unless one is under way, and answers its number; with `repair` what can
    /// be mended is. Only root may.
    pub async fn start_fsck(&self, partition: u32, repair: bool) -> Result<u64> {
        Ok(self.fsck(partition, FsckRequest { start: true, repair, ..FsckRequest::default() }).await?.run)
    }
    /// How that check goes on, with its findings from that one on.
    pub async fn fsck_progress(&self, partition: u32, run: u64, findings_from: u32) -> Result<FsckProgress> {
        self.fsck(partition, FsckRequest { run, findings_from, ..FsckRequest::default() }).await
    }
    async fn fsck(&self, partition: u32, request: FsckRequest) -> Result<FsckProgress> {
        let header = Some(self.caller.read_header(partition));
        let what = format!("check of volume {}, partition p{partition}", self.name());
        let request = FsckRequest { header, ..request };
        Ok(FsckProgress::of_wire(self.caller.read(&what, partition, Opcode::Fsck, request).await?))
    }
}
