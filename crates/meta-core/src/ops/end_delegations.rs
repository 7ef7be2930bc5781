//! EndDelegations: the session has stored all that it made in these directories, and leads them no longer.
use crate::error::{OpError, Result};
use crate::limits::DELEGATIONS_END_MAX;
use crate::message::request;
use crate::namespace::{Context, Namespace};
use cairn_types::ErrorCode;

impl Namespace {
    /// Those that have ended, or are another session's, are passed over: a repeat after a lost answer finds them so.
    pub(crate) fn end_delegations(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::EndDelegations::decode(bytes)?;
        let mut numbers = Vec::new();
        request.numbers.visit(|number| {
            numbers.push(number);
            numbers.len() <= DELEGATIONS_END_MAX
        })?;
        if numbers.len() > DELEGATIONS_END_MAX {
            return Err(OpError::new(ErrorCode::InvalidArgument, "at most 256 delegations in one request"));
        }
        for number in numbers {
            if self.is_led_by(context.session, number) {
                self.end_delegation(number);
            }
        }
        Ok(())
    }
}
