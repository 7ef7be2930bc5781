//! [`Protection`]: what an operation needs on its way between two parties with keys.
//!
//! Invariant: an operation may do with less than TLS only if its payload is file data whose checksums are in its
//! message, or if it has no payload; whoever is not named below needs TLS. It counts on connections whose peer showed a
//! certificate. Not here: how it is done (`security`, `rpc`), who may ask what ([`audience`](crate::audience)).

use crate::Opcode;

/// How a connection keeps what is said on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Protection {
    /// TLS all through: nobody in between reads or changes anything.
    Private,
    /// Both sides know who the other one is, and nobody in between changes, repeats or leaves out a message. Messages
    /// and payloads can be read, and payloads are safe from accidents only.
    Authenticated,
}

impl Opcode {
    /// The least that it may be asked and answered on.
    pub const fn protection(self) -> Protection {
        match self {
            // One stream carries these, in order, so all of them go the same way.
            Self::Read | Self::Append | Self::Sync | Self::Seal | Self::Overwrite | Self::RecordAppend => {
                Protection::Authenticated
            }
            _ => Protection::Private,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What says who may do what, or where data lies, could be read by who listens.
    #[test]
    fn only_file_data_goes_without_tls() {
        let open: Vec<&str> = Opcode::ALL
            .iter()
            .filter(|opcode| opcode.protection() == Protection::Authenticated)
            .map(|o| o.name())
            .collect();
        assert_eq!(open, ["Append", "Sync", "Seal", "Read", "Overwrite", "RecordAppend"]);
    }
}
