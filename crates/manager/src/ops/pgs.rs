//! EnsurePgs: the volume has placement groups of a class that take new chunks.
//!
//! Copies that are encoded later go to columns of stripe groups where those are wanted and can be made, else to groups
//! of no class: placement for encoding is never a reason for which nothing can be written.
use super::TAKEOVER_PATIENCE;
use super::private_data::{data_nodes_below, refusal};
use crate::manager::Manager;
use cairn_env::Rng;
use cairn_manager_core::command::{Command, CreatePgs, CreateStripeGroups, Disks, SetPgsOpen, StripeGroupOf};
use cairn_manager_core::stripe::shards::ShardsPlan;
use cairn_manager_core::{Outcome, Pg, plan, stripe};
use cairn_placement::ear::EarRefusal;
use cairn_types::{ErrorCode, PgClass, PgId, Scheme, StripeGroupId, VolumeId};
use cairn_wire::error::WireError;
use cairn_wire::manager::{EnsurePgsRequest, EnsurePgsResponse};

/// Plans that may be overtaken by a change of the cluster before it is given up.
const PLANS_MAX: usize = 4;

impl Manager {
    pub(crate) async fn ensure_pgs(&self, request: EnsurePgsRequest) -> Result<EnsurePgsResponse, WireError> {
        let volume = VolumeId(request.volume);
        if request.stripe_group != 0 {
            let pg = self.ensure_shards(volume, StripeGroupId(request.stripe_group)).await?;
            return Ok(EnsurePgsResponse { map: Some(self.client_map(0, volume)?), pg: pg.get() });
        }
        let known = |code: u32| {
            u8::try_from(code).ok().and_then(Scheme::from_code).ok_or_else(|| {
                WireError::new(ErrorCode::BadLayout, format!("scheme {code} is not one of this version"))
            })
        };
        let later = Some(request.later).filter(|later| *later != 0).map(known).transpose()?;
        let class = PgClass { scheme: known(request.scheme)?, later };
        self.check_known(class)?;
        let full = self.close_full(volume, &request.full).await?;
        self.ensure_but(volume, class, &full).await?;
        Ok(EnsurePgsResponse { map: Some(self.client_map(0, volume)?), pg: 0 })
    }

    /// Data nodes of an earlier build do not know every scheme.
    fn check_known(&self, class: PgClass) -> Result<(), WireError> {
        let schemes = [Some(class.scheme), class.later].into_iter().flatten();
        let Some(scheme) = schemes.max_by_key(|scheme| scheme.since_level()).filter(|scheme| scheme.since_level() > 0)
        else {
            return Ok(());
        };
        let level = scheme.since_level();
        self.look_in_cluster(|state, leading| match data_nodes_below(state, leading, level) {
            nodes if nodes.is_empty() => Ok(()),
            nodes => Err(WireError::new(ErrorCode::BadLayout, refusal(&scheme.to_string(), level, &nodes))),
        })
    }

    /// A writer says that a member said that these are full: those that can be take no new chunks until their disks
    /// have room again. Returns these; of others each would be replaced by a new one, as often as somebody says it.
    async fn close_full(&self, volume: VolumeId, said: &[u32]) -> Result<Vec<u32>, WireError> {
        let now = self.now();
        let (full, closed) = self.look_in_cluster(|state, leading| {
            let own = said.iter().filter_map(|id| state.pg(PgId(*id)).filter(|pg| pg.volume == volume));
            let full: Vec<&Pg> = own.filter(|pg| plan::may_be_full(state, &leading.soft, pg)).collect();
            let open = || full.iter().filter(|pg| pg.open);
            open().for_each(|pg| leading.found_full.full(volume, pg.class(), now));
            let ids: Vec<u32> = full.iter().map(|pg| pg.id.get()).collect();
            Ok((ids, open().map(|pg| pg.id.get()).collect::<Vec<u32>>()))
        })?;
        if !closed.is_empty() {
            tracing::info!(%volume, ?closed, "placement groups are full");
            self.execute(Command::SetPgsOpen(SetPgsOpen { open: Vec::new(), closed })).await?;
        }
        Ok(full)
    }

    /// Makes the groups that files of this class lack, those for what is too short for a row too, and waits a moment
    /// until their members know them.
    pub(crate) async fn ensure(&self, volume: VolumeId, class: impl Into<PgClass>) -> Result<(), WireError> {
        self.ensure_but(volume, class.into(), &[]).await
    }

    /// The same, when somebody found these full a moment ago.
    async fn ensure_but(&self, volume: VolumeId, class: PgClass, full: &[u32]) -> Result<(), WireError> {
        let _one_at_a_time = self.planning.lock().await;
        if class.later.is_some() && self.ensure_columns(volume, class, full).await? {
            return Ok(());
        }
        for class in plan::classes_for(class.plain()) {
            if self.may_make(volume, class)? {
                self.open_again(volume, class, full).await?;
                self.ensure_one(volume, class.scheme).await?;
            }
        }
        Ok(())
    }

    /// Makes the stripe groups that a volume lacks. False: it has too few columns for its writers, and gets no more.
    async fn ensure_columns(&self, volume: VolumeId, class: PgClass, full: &[u32]) -> Result<bool, WireError> {
        if !self.look_in_cluster(|state, _| Ok(stripe::plan::is_wanted(state, class)))? {
            return Ok(false);
        }
        if self.may_make(volume, class)? {
            // Whatever is in the way of columns, writers get groups.
            let made = async {
                self.open_again(volume, class, full).await?;
                self.make_stripe_groups(volume, class).await
            };
            match made.await {
                Ok(Ok(())) => {}
                Ok(Err(refusal)) => tracing::debug!(%volume, %class, %refusal, "no more stripe groups can be made now"),
                Err(error) => tracing::debug!(%volume, %class, %error, "no stripe groups could be made now"),
            }
        }
        self.look_in_cluster(|state, _| Ok(plan::need(state, volume, class).suffices()))
    }

    /// Not while those that were made a moment ago are found full.
    fn may_make(&self, volume: VolumeId, class: PgClass) -> Result<bool, WireError> {
        let now = self.now();
        self.look_in_cluster(|_, leading| Ok(leading.found_full.may_make(volume, class, now)))
    }

    /// Opens groups that were full and have a little room again, as far as some are missing.
    async fn open_again(&self, volume: VolumeId, class: PgClass, full: &[u32]) -> Result<(), WireError> {
        let open =
            self.look_in_cluster(|state, leading| Ok(plan::reopen(state, &leading.soft, volume, class, full)))?;
        if open.is_empty() {
            return Ok(());
        }
        tracing::info!(%volume, %class, ?open, "placement groups that have a little room again take new chunks");
        self.note_made(volume, class);
        self.execute(Command::SetPgsOpen(SetPgsOpen { open, closed: Vec::new() })).await.map(drop)
    }

    /// There are new ones to be found full.
    fn note_made(&self, volume: VolumeId, class: PgClass) {
        let now = self.now();
        // Who does not lead any more makes none.
        let _ = self.look(|_, leading| leading.found_full.made(volume, class, now));
    }

    async fn make_stripe_groups(&self, volume: VolumeId, class: PgClass) -> Result<Result<(), EarRefusal>, WireError> {
        let later = class.later.map_or(0, |later| u32::from(later.code()));
        for _ in 0..PLANS_MAX {
            let groups = match self.plan_stripe_groups(volume, class).await? {
                Ok(groups) if groups.is_empty() => return Ok(Ok(())),
                Ok(groups) => groups,
                Err(refusal) => return Ok(Err(refusal)),
            };
            let (volume_number, scheme) = (volume.get(), u32::from(class.scheme.code()));
            let command = CreateStripeGroups { volume: volume_number, scheme, later, groups };
            match self.execute(Command::CreateStripeGroups(command)).await {
                Ok(outcome) => return self.made(volume, class, outcome).await.map(Ok),
                Err(error) if error.code == ErrorCode::Conflict => {}
                Err(error) => return Err(error),
            }
        }
        Err(changes_too_fast())
    }

    async fn plan_stripe_groups(
        &self,
        volume: VolumeId,
        class: PgClass,
    ) -> Result<Result<Vec<StripeGroupOf>, EarRefusal>, WireError> {
        let picture = self.look_in_cluster(|state, leading| {
            Ok(stripe::plan::is_needed(state, volume, class).then(|| leading.soft.clone()))
        })?;
        let Some(soft) = picture else { return Ok(Ok(Vec::new())) };
        let state = self.replica.read().clone();
        let seed = Rng::u64(self.rng.as_ref());
        tokio::task::spawn_blocking(move || stripe::plan::plan(&state, &soft, volume, class, seed))
            .await
            .map_err(|_| WireError::new(ErrorCode::Unavailable, "the manager stops; ask another"))
    }

    /// The erasure group whose data shards are where the columns of a stripe group have copies.
    async fn ensure_shards(&self, volume: VolumeId, group: StripeGroupId) -> Result<PgId, WireError> {
        let _one_at_a_time = self.planning.lock().await;
        for _ in 0..PLANS_MAX {
            let plan = self.look_in_cluster(|state, leading| {
                let flaw = |why: String| WireError::new(ErrorCode::Conflict, why);
                stripe::shards::plan(state, &leading.soft, volume, group).map_err(flaw)
            })?;
            let (scheme, disks) = match plan {
                ShardsPlan::There(pg) => return Ok(pg),
                ShardsPlan::Make(scheme, disks) => (scheme, disks),
            };
            let command = CreatePgs { volume: volume.get(), scheme: u32::from(scheme.code()), groups: vec![disks] };
            match self.execute(Command::CreatePgs(command)).await {
                Ok(outcome) => self.made(volume, scheme.into(), outcome).await?,
                Err(error) if error.code == ErrorCode::Conflict => {}
                Err(error) => return Err(error),
            }
        }
        Err(changes_too_fast())
    }

    /// Tells the members of new groups, and waits a moment for them.
    async fn made(&self, volume: VolumeId, class: PgClass, outcome: Outcome) -> Result<(), WireError> {
        let Outcome::Pgs(made) = outcome else {
            return Err(WireError::new(ErrorCode::Internal, "a plan came to something else"));
        };
        tracing::info!(%volume, %class, count = made.len(), "placement groups made");
        self.note_made(volume, class);
        self.push(&made);
        self.pushed(&made, TAKEOVER_PATIENCE).await;
        Ok(())
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
                Ok(outcome) => return self.made(volume, scheme.into(), outcome).await,
                // The cluster changed under the plan: plan again.
                Err(error) if error.code == ErrorCode::Conflict => {}
                Err(error) => return Err(error),
            }
        }
        Err(changes_too_fast())
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

fn changes_too_fast() -> WireError {
    WireError::new(ErrorCode::Overloaded, "the cluster changes too fast to place data; repeat in a moment")
}
