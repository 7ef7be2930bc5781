//! The feature level of the managers' group: activated as soon as all of its members have announced that they
//! understand it.
use crate::manager::Manager;
use cairn_manager_core::command::{ActivateLevel, Command};

impl Manager {
    /// Raises the activated level to what all understand.
    pub(super) async fn raise_level(&self) {
        let Some(common) = self.understanding().common else { return };
        let active = self.look(|state, _| state.cluster().map(|_| state.level()));
        let Ok(Some(active)) = active else { return };
        if active < common && self.duty("feature level", Command::ActivateLevel(ActivateLevel { level: common })).await
        {
            tracing::info!(from = active, to = common, "all managers understand more: the feature level is raised");
        }
    }
}
