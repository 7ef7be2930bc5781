//! What operators do with disks, nodes, racks and placement groups.
use super::status::Awaited;
use super::target::Target;
use crate::connect::Client;
use crate::error::Result;
use cairn_types::PgClass;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::manager::{
    self, ClearGrayRequest, DrainRequest, EnsurePgsRequest, EnsurePgsResponse, ForcePgRequest, ForcePgResponse,
    GoOnRequest, HibernateRequest, RemoveRequest,
};
use std::time::Duration;

/// A disk that may serve although it may lack what was written last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForceCandidate {
    pub disk: u32,
    pub chunks: u64,
    pub bytes: u64,
}

/// What giving up disks of a placement group does, or would do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forced {
    /// Of the group, after it or as it is now.
    pub epoch: Option<u64>,
    /// Members that serve from then on although they may lack what was written last.
    pub serving: Vec<u32>,
    pub candidates: Vec<ForceCandidate>,
    /// What is lost, in words.
    pub meaning: String,
}

impl Client {
    async fn change(&self, what: &str, opcode: Opcode, request: &impl prost::Message) -> Result<()> {
        self.manager::<Empty>(what, opcode, request).await.map(|_| ())
    }
    /// Everything leaves it, while it serves; or stays after all. The managers go on with it.
    pub async fn drain(&self, what: &str, target: &Target, cancel: bool) -> Result<()> {
        let request = DrainRequest { target: Some(target.to_wire()), cancel };
        self.change(what, Opcode::Drain, &request).await
    }
    /// It is taken down for so long: what it keeps is not made anew elsewhere meanwhile.
    pub async fn hibernate(&self, what: &str, target: &Target, window: Duration) -> Result<()> {
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        let request = HibernateRequest { target: Some(target.to_wire()), window_ms, end: false };
        self.change(what, Opcode::Hibernate, &request).await
    }
    /// It is back, or expected no more.
    pub async fn end_hibernation(&self, what: &str, target: &Target) -> Result<()> {
        let request = HibernateRequest { target: Some(target.to_wire()), window_ms: 0, end: true };
        self.change(what, Opcode::Hibernate, &request).await
    }
    /// A disk or a node that keeps nothing is no part of the cluster any more.
    pub async fn remove(&self, what: &str, target: &Target) -> Result<()> {
        self.change(what, Opcode::Remove, &RemoveRequest { target: Some(target.to_wire()) }).await
    }
    /// A disk that was marked gray is good.
    pub async fn clear_gray(&self, what: &str, disk: u32) -> Result<()> {
        self.change(what, Opcode::ClearGray, &ClearGrayRequest { disk }).await
    }
    /// Managers whose state was restored wait no longer for these; refused if they wait for more by now.
    pub async fn go_on_without(&self, what: &str, given_up: Awaited) -> Result<()> {
        let Awaited { nodes, disks, pgs, pgs_in_all } = given_up;
        let given_up = Some(manager::Awaited { nodes, disks, pgs, pgs_in_all });
        self.change(what, Opcode::GoOn, &GoOnRequest { given_up }).await
    }
    /// Gives up disks that a placement group waits for. Without `confirmed` nothing is done, and told what would be.
    pub async fn force_pg(&self, what: &str, pg: u32, lost_disks: &[u32], confirmed: bool) -> Result<Forced> {
        let request = ForcePgRequest { pg, lost_disks: lost_disks.to_vec(), confirmed };
        let found: ForcePgResponse = self.manager(what, Opcode::ForcePg, &request).await?;
        let candidate =
            |one: manager::ForceCandidate| ForceCandidate { disk: one.disk, chunks: one.chunks, bytes: one.bytes };
        Ok(Forced {
            epoch: found.state.map(|state| state.epoch),
            serving: found.serving,
            candidates: found.candidates.into_iter().map(candidate).collect(),
            meaning: found.meaning,
        })
    }
    /// Makes sure that a volume has placement groups that take new data of a class.
    pub async fn ensure_pgs(&self, what: &str, volume: u32, class: PgClass) -> Result<()> {
        let (scheme, later) = (u32::from(class.scheme.code()), class.later.map_or(0, |later| u32::from(later.code())));
        let request = EnsurePgsRequest { volume, scheme, later, ..EnsurePgsRequest::default() };
        self.manager::<EnsurePgsResponse>(what, Opcode::EnsurePgs, &request).await.map(|_| ())
    }
}
