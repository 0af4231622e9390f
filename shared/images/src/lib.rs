//! Container images as the root of sandboxes, without a daemon.
//!
//! An image is read from its registry once ([`Registries`]); its blobs are kept in the store of the farm, from which all
//! machines read them. Each layer is unpacked once on a machine, by the digest of its content, and shared by all images
//! that contain it ([`Images`]). An image is then a list of folders that the kernel combines (an overlay mount), or a folder with
//! links to the files of its layers on machines that cannot mount.
//!
//! Everything in an image may be hostile: documents and archives have limits, every digest is checked, and unpacking
//! follows no link and never leaves its folder.

mod bounded;
mod cache;
mod challenge;
mod error;
mod fetches;
mod images;
mod manifest;
mod merge;
mod mount_points;
mod names;
mod open;
mod place;
mod progress;
mod registry;
mod stored;
mod tree;
mod unpack;
mod unpacked;
mod user;

pub use error::ImageError;
pub use images::{Image, Images};
pub use manifest::ImageConfig;
pub use names::ImageNames;
pub use open::{FOLDER, open};
pub use progress::PullProgress;
pub use registry::Registries;
pub use stored::{blobs_of_stored, manifest_of_layout};
pub use unpack::unpack_layer;
pub use user::ImageUser;
