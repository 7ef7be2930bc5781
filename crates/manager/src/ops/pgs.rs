//! EnsurePgs: the volume has placement groups of a scheme that take new chunks.
use super::TAKEOVER_PATIENCE;
use crate::manager::Manager;
use cairn_env::Rng;
use cairn_manager_core::command::{Command, CreatePgs, Disks, SetPgsOpen};
use cairn_manager_core::{Outcome, plan};
use cairn_types::{ErrorCode, PgId, Scheme, VolumeId};
use cairn_wire::error::WireError;
use cairn_wire::manager::{EnsurePgsRequest, EnsurePgsResponse};

/// Plans that may be overtaken by a change of the cluster before it is given up.
const PLANS_MAX: usize = 4;

impl Manager {
    pub(crate) async fn ensure_pgs(&self, request: EnsurePgsRequest) -> Result<EnsurePgsResponse, WireError> {
        let volume = VolumeId(request.volume);
        let scheme = u8::try_from(request.scheme).ok().and_then(Scheme::from_code).ok_or_else(|| {
            let text = format!("scheme {} is not one of this version", request.scheme);
            WireError::new(ErrorCode::BadLayout, text)
        })?;
        self.close_full(volume, &request.full).await?;
        self.ensure_but(volume, scheme, &request.full).await?;
        Ok(EnsurePgsResponse { map: Some(self.client_map(0, volume)?) })
    }

    /// A member said that these are full: they take no new chunks until their disks have room again.
    async fn close_full(&self, volume: VolumeId, full: &[u32]) -> Result<(), WireError> {
        let now = self.now();
        let closed: Vec<u32> = self.look_in_cluster(|state, leading| {
            let open = full.iter().filter_map(|id| state.pg(PgId(*id)).filter(|pg| pg.volume == volume && pg.open));
            let closed = open.map(|pg| {
                leading.found_full.full(volume, pg.scheme, now);
                pg.id.get()
            });
            Ok(closed.collect())
        })?;
        if closed.is_empty() {
            return Ok(());
        }
        tracing::info!(%volume, ?closed, "placement groups are full");
        self.execute(Command::SetPgsOpen(SetPgsOpen { open: Vec::new(), closed })).await.map(drop)
    }

    /// Makes the groups that files of this scheme lack, those for what is too short for a row too, and waits a moment
    /// until their members know them.
    pub(crate) async fn ensure(&self, volume: VolumeId, scheme: Scheme) -> Result<(), WireError> {
        self.ensure_but(volume, scheme, &[]).await
    }

    /// The same, when somebody found these full a moment ago.
    async fn ensure_but(&self, volume: VolumeId, scheme: Scheme, full: &[u32]) -> Result<(), WireError> {
        let _one_at_a_time = self.planning.lock().await;
        for scheme in plan::schemes_for(scheme) {
            let now = self.now();
            if !self.look_in_cluster(|_, leading| Ok(leading.found_full.may_make(volume, scheme, now)))? {
                continue;
            }
            self.open_again(volume, scheme, full).await?;
            self.ensure_one(volume, scheme).await?;
        }
        Ok(())
    }

    /// Opens groups that were full and have a little room again, as far as some are missing.
    async fn open_again(&self, volume: VolumeId, scheme: Scheme, full: &[u32]) -> Result<(), WireError> {
        let open =
            self.look_in_cluster(|state, leading| Ok(plan::reopen(state, &leading.soft, volume, scheme, full)))?;
        if open.is_empty() {
            return Ok(());
        }
        tracing::info!(%volume, %scheme, ?open, "placement groups that have a little room again take new chunks");
        self.note_made(volume, scheme);
        self.execute(Command::SetPgsOpen(SetPgsOpen { open, closed: Vec::new() })).await.map(drop)
    }

    /// There are new ones to be found full.
    fn note_made(&self, volume: VolumeId, scheme: Scheme) {
        let now = self.now();
        // Who does not lead any more makes none.
        let _ = self.look(|_, leading| leading.found_full.made(volume, scheme, now));
    }

    async fn ensure_one(&self, volume: VolumeId, scheme: Scheme) -> Result<(), WireError> {
        for _ in 0..PLANS_MAX {
            let groups = self.plan(volume, scheme).await?;
            if groups.is_empty() {
                return Ok(());
            }
            let scheme_code = u32::from(scheme.code());
            let command = CreatePgs { volume: volume.get(), scheme: scheme_code, groups };
            match self.execute(Command::CreatePgs(command)).await {
                Ok(Outcome::Pgs(made)) => {
                    tracing::info!(%volume, %scheme, count = made.len(), "placement groups made");
                    self.note_made(volume, scheme);
                    self.push(&made);
                    self.pushed(&made, TAKEOVER_PATIENCE).await;
                    return Ok(());
                }
                Ok(_) => return Err(WireError::new(ErrorCode::Internal, "a plan came to something else")),
                // The cluster changed under the plan: plan again.
                Err(error) if error.code == ErrorCode::Conflict => {}
                Err(error) => return Err(error),
            }
        }
        Err(WireError::new(ErrorCode::Overloaded, "the cluster changes too fast to place data; repeat in a moment"))
    }

    /// Plans on a picture of the state, on another thread: in a large cluster it takes long.
    async fn plan(&self, volume: VolumeId, scheme: Scheme) -> Result<Vec<Disks>, WireError> {
        let picture = self.look_in_cluster(|state, leading| {
            let enough = state.volume(volume).is_some_and(|v| !v.deleted)
                && plan::need(state, volume, scheme).missing == 0
                && plan::idle(state, &leading.soft, volume, scheme).is_empty();
            Ok((!enough).then(|| leading.soft.clone()))
        })?;
        let Some(soft) = picture else { return Ok(Vec::new()) };
        let state = self.replica.read().clone();
        let seed = Rng::u64(self.rng.as_ref());
        let planned = tokio::task::spawn_blocking(move || plan::plan(&state, &soft, volume, scheme, seed)).await;
        planned.unwrap_or_else(|_| Err(WireError::new(ErrorCode::Unavailable, "the manager stops; ask another")))
    }
}
