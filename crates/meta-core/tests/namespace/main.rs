//! The namespace as its callers see it: protobuf in, protobuf out.
mod against_model;
mod driver;
mod files;
mod translate;
