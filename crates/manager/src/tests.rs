//! Managers over loopback with real logs, and nodes that are played by the tests.
mod cluster;
mod failures;
mod force;
mod jobs;
mod marks;
mod moves;
mod node;
mod repair;
mod restored;
mod single;
mod triple;
