//! Tests of the core: simulated clusters under faults, hostile messages, single steps.

mod cluster;
mod commits;
mod counts;
mod hostile;
mod member;
mod older;
mod scenarios;
mod sleep;
