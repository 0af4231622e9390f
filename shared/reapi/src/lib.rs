//! The Remote Execution API as Forebay uses it: the protocol's types, resource names, and the rules for digests,
//! directories and errors that all its servers and clients share. This crate does no I/O.

pub mod canonical;
pub mod digest;
pub mod directory;
pub mod instance;
pub mod metadata;
pub mod provenance;
pub mod resource;
pub mod status;
pub mod stream;

pub use bazel_remote_apis::{
    build::bazel::{
        remote::{asset::v1 as asset, execution::v2 as execution, logstream::v1 as logstream},
        semver,
    },
    google::{bytestream, longrunning, protobuf, rpc},
};
