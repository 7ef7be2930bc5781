//! The epochs under which bytes were read that are to be written elsewhere for good.
//!
//! A member that does not know yet that it was removed answers with the blocks of before what was overwritten in place
//! since. Its reader sees them once; whoever writes them anew would cover the newer ones for ever. So what is moved is
//! asked for under the epochs of the reader's map, and used only if the groups are in these epochs still when all is
//! read: then whoever answered was a member, and had everything that was acknowledged. What is overwritten after that
//! is found by the lease and the version. Not here: conversions, which read for so long that epochs change meanwhile.
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::overwrite::Epochs;
use cairn_types::{Epoch, PgId};
use parking_lot::Mutex;

/// See the module.
#[derive(Default)]
pub(crate) struct ReadEpochs(Mutex<Epochs>);

impl ReadEpochs {
    /// The epoch under which a group is asked, from the first time on.
    pub async fn of(&self, cluster: &Cluster, pg: PgId) -> Result<Epoch> {
        if let Some(epoch) = self.0.lock().get(&pg) {
            return Ok(*epoch);
        }
        let known = || cluster.view().pgs.get(&pg.0).map(|group| group.epoch);
        if known().is_none() {
            cluster.refresh().await?;
        }
        let epoch = known().ok_or_else(|| ClientError::protocol(&pg.to_string(), "it is not in the map"))?;
        Ok(*self.0.lock().entry(pg).or_insert(epoch))
    }
    /// Asks the manager whether all groups are in these epochs still; [`ClientError::Changed`] if not.
    pub async fn confirm(&self, cluster: &Cluster, what: &str) -> Result<()> {
        if self.0.lock().is_empty() {
            return Ok(());
        }
        cluster.refresh_from_now().await?;
        let view = cluster.view();
        let same = self.0.lock().iter().all(|(pg, epoch)| view.pgs.get(&pg.0).is_some_and(|now| now.epoch == *epoch));
        if same { Ok(()) } else { Err(ClientError::Changed { what: what.into() }) }
    }
}
