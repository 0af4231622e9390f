//! The canonical encoding of messages, used for digests: fields in the order of their tags (as prost writes them),
//! and lists that represent sets sorted.

use bytes::Bytes;
use model::{BlobDigest, DigestFunction};
use prost::Message;

use crate::execution::{Command, Directory, NodeProperties, Platform};

/// Encodes a message as a blob.
pub fn encode(message: &impl Message, function: DigestFunction) -> (BlobDigest, Bytes) {
    let bytes = message.encode_to_vec();
    (function.digest(&bytes), bytes.into())
}

/// Sorts the nodes of a directory and their properties.
pub fn sort_directory(directory: &mut Directory) {
    directory.files.sort_by(|a, b| a.name.cmp(&b.name));
    directory.directories.sort_by(|a, b| a.name.cmp(&b.name));
    directory.symlinks.sort_by(|a, b| a.name.cmp(&b.name));
    let files = directory.files.iter_mut().map(|node| &mut node.node_properties);
    let symlinks = directory.symlinks.iter_mut().map(|node| &mut node.node_properties);
    for properties in files.chain(symlinks).chain([&mut directory.node_properties]).flatten() {
        sort_properties(properties);
    }
}

fn sort_properties(properties: &mut NodeProperties) {
    properties.properties.sort_by(|a, b| (&a.name, &a.value).cmp(&(&b.name, &b.value)));
}

/// Sorts the properties of a platform.
pub fn sort_platform(platform: &mut Platform) {
    platform.properties.sort_by(|a, b| (&a.name, &a.value).cmp(&(&b.name, &b.value)));
}

/// Sorts the environment, outputs and platform properties of a command.
#[expect(deprecated, reason = "older clients fill these fields")]
pub fn sort_command(command: &mut Command) {
    command.environment_variables.sort_by(|a, b| a.name.cmp(&b.name));
    for names in [
        &mut command.output_files,
        &mut command.output_directories,
        &mut command.output_paths,
        &mut command.output_node_properties,
    ] {
        names.sort();
        names.dedup();
    }
    if let Some(platform) = &mut command.platform {
        sort_platform(platform);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{directory::check, execution::SymlinkNode};

    #[test]
    fn a_sorted_directory_is_canonical_and_its_bytes_hash_to_its_digest() {
        let link = |name: &str| SymlinkNode { name: name.into(), target: "x".into(), node_properties: None };
        let mut directory = Directory { symlinks: vec![link("b"), link("a")], ..Directory::default() };
        assert!(check(&directory).is_err());
        sort_directory(&mut directory);
        check(&directory).unwrap();
        for function in DigestFunction::ALL {
            let (digest, bytes) = encode(&directory, function);
            assert_eq!(function.digest(&bytes), digest);
            assert_eq!(Directory::decode(bytes).unwrap(), directory);
        }
        assert!(encode(&Directory::default(), DigestFunction::Sha256).0.is_empty_blob());
    }

    #[test]
    fn a_sorted_command_does_not_depend_on_the_order_given() {
        let command = |paths: [&str; 3]| Command {
            output_paths: paths.map(str::to_owned).to_vec(),
            ..Command::default()
        };
        let (mut one, mut other) = (command(["b", "a", "b"]), command(["a", "b", "a"]));
        sort_command(&mut one);
        sort_command(&mut other);
        assert_eq!(one, other);
        assert_eq!(one.output_paths, ["a", "b"]);
    }
}
