//! The namespace as its callers see it: protobuf in, protobuf out.
mod driver;
mod files;
