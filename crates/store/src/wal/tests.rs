//! Tests of the log: reading back, crashes at every operation, damage, failures of the disk.

mod crash;
mod damage;
mod fixture;
mod lost_ends;
mod plain;
