//! `cairn fs`, `cairn admin`, `cairn inspect`, shell completions and manual pages: what a person or a script types.
//!
//! Everything goes through `cairn_client`. Owns: the command line, what is printed (text and JSON), exit codes. Not
//! here: rules of the file system (`meta-core`), retries and fail-over (`client`), servers (`cairn dev`,
//! `cairn server`).
pub mod admin;
mod args;
mod at_snapshot;
mod completion;
mod context;
mod default_address;
mod ending;
mod entry;
mod error;
mod exit;
pub mod fs;
mod glob;
mod human;
pub mod inspect;
mod man;
mod mode;
mod output;
mod owner;
mod progress;
mod redundancy;
mod remote;
mod report;
mod run;
mod table;
mod tasks;
mod transfer;
mod walk;

pub use args::{GlobalArgs, expand_args};
pub use completion::complete_if_asked;
pub use context::Context;
pub use default_address::check_default_address;
pub use error::CliError;
pub use exit::Exit;
pub use human::duration;
pub use report::json_error;
pub use run::{Command, run};
