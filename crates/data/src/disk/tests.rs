//! Tests of the disk store on the simulated disk: crashes at every step, failures, damage.

mod again;
mod at_once;
mod crash;
mod faults;
mod generations;
mod gone;
mod holes;
mod interrupted;
mod lingers;
mod model;
mod overwrites;
mod pipes;
mod simulated;
mod sizes;
mod tables;
