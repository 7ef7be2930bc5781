//! Errors as they cross the wire: a closed code, its retry class, a text and hints.
use crate::common::ErrorInfo;
use cairn_types::{Epoch, ErrorCode, RetryClass};
use std::fmt;

/// An error answer. `code` decides what the caller does; `message` is for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WireError {
    pub code: ErrorCode,
    pub message: String,
    /// host:port of who may lead, for `NotLeader`.
    pub leader_hint: Option<String>,
    /// The epoch that the member holds, where it refuses what another one may allow: for `StaleEpoch`, and the like.
    pub current_epoch: Option<Epoch>,
    /// The disk whose member failed, for `ChainFailed`.
    pub failed_disk: Option<u32>,
}

impl WireError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), leader_hint: None, current_epoch: None, failed_disk: None }
    }
    pub fn not_leader(hint: Option<String>) -> Self {
        let message = match &hint {
            Some(hint) => format!("this member does not lead; ask {hint}"),
            None => "this member does not lead and knows no leader; an election is running, repeat".into(),
        };
        Self { leader_hint: hint, ..Self::new(ErrorCode::NotLeader, message) }
    }
    pub fn stale_epoch(current: Epoch, message: impl Into<String>) -> Self {
        Self { current_epoch: Some(current), ..Self::new(ErrorCode::StaleEpoch, message) }
    }
    /// It is so in this epoch: whoever goes by another one knows more, or less.
    #[must_use]
    pub fn in_epoch(self, current: Epoch) -> Self {
        Self { current_epoch: Some(current), ..self }
    }
    pub fn chain_failed(disk: u32, message: impl Into<String>) -> Self {
        Self { failed_disk: Some(disk), ..Self::new(ErrorCode::ChainFailed, message) }
    }
    pub fn retry(&self) -> RetryClass {
        self.code.retry()
    }
    pub fn to_info(&self) -> ErrorInfo {
        ErrorInfo {
            code: u32::from(self.code.code()),
            retry_class: self.code.retry() as u32,
            message: self.message.clone(),
            leader_hint: self.leader_hint.clone().unwrap_or_default(),
            current_epoch: self.current_epoch.map_or(0, Epoch::get),
            failed_disk: self.failed_disk.unwrap_or(0),
        }
    }
    /// A code of a later version becomes `Internal` with its number in the text.
    pub fn from_info(info: ErrorInfo) -> Self {
        let code = u16::try_from(info.code).ok().and_then(ErrorCode::from_code);
        let message = match code {
            Some(_) => info.message,
            None => format!("error {} of a later version: {}", info.code, info.message),
        };
        Self {
            code: code.unwrap_or(ErrorCode::Internal),
            message,
            leader_hint: (!info.leader_hint.is_empty()).then_some(info.leader_hint),
            current_epoch: (info.current_epoch != 0).then_some(Epoch(info.current_epoch)),
            failed_disk: (info.failed_disk != 0).then_some(info.failed_disk),
        }
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for WireError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_round_trip_and_unknown_codes_stay_readable() {
        let error = WireError::stale_epoch(Epoch(9), "pg3 is at e9");
        assert_eq!(WireError::from_info(error.to_info()), error);
        let later = WireError::from_info(ErrorInfo { code: 60_000, message: "x".into(), ..Default::default() });
        assert_eq!(later.code, ErrorCode::Internal);
        assert!(later.message.contains("60000"));
    }
}
