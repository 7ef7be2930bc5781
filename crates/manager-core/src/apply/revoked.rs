//! Names whose keys count no more. They only become more.
use crate::apply::Outcome;
use crate::command::RevokeKeys;
use crate::state::State;
use cairn_types::{ErrorCode, WallTime};
use cairn_wire::error::WireError;
use cairn_wire::holder::{Holder, sum_of_names};

/// Most names: each server has them in memory, and is told all of them when one comes.
pub const REVOKED_MAX: usize = 16_384;

impl State {
    /// Names whose keys count no more, and since when.
    pub fn revoked(&self) -> impl Iterator<Item = (&str, WallTime)> {
        self.revoked.iter().map(|(name, since)| (name.as_str(), *since))
    }

    /// Which list of them this is.
    pub fn revoked_sum(&self) -> u64 {
        sum_of_names(self.revoked.keys().map(String::as_str))
    }

    pub(super) fn revoke_keys(&mut self, time: WallTime, command: &RevokeKeys) -> Result<Outcome, WireError> {
        if let Some(bad) = command.names.iter().find(|name| !Holder::is_name(name)) {
            return Err(WireError::new(ErrorCode::BadRequest, format!("{bad:?} is no name of a key")));
        }
        if self.revoked.len() + command.names.len() > REVOKED_MAX {
            let text = format!("{REVOKED_MAX} keys are revoked at most: replace the authority, and with it all keys");
            return Err(WireError::new(ErrorCode::Conflict, text));
        }
        for name in &command.names {
            self.revoked.entry(name.clone()).or_insert(time);
        }
        Ok(Outcome::Done)
    }
}
