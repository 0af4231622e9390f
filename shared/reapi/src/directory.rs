//! Which [`Directory`] messages are acceptable as part of an input root.

use model::DigestFunction;

use crate::{
    digest::from_proto,
    execution::{self, Directory},
};

/// Bytes of a name at most: file systems take no more.
pub const NAME_MAX: usize = 255;

/// Why a directory is not acceptable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryFault {
    /// A name that cannot be one node's.
    #[error("{name:?} is no name of a file, directory or symlink")]
    Name {
        /// The name.
        name: String,
    },
    /// Names out of order.
    #[error("{after:?} comes after {name:?}: nodes have to be sorted by name")]
    Order {
        /// The one that should come later.
        name: String,
        /// The one that should come earlier.
        after: String,
    },
    /// One name for two nodes.
    #[error("{name:?} names two nodes")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A digest that is none.
    #[error("the digest of {name:?} is not valid: {wrong}")]
    Digest {
        /// The node's name.
        name: String,
        /// What is wrong.
        wrong: String,
    },
    /// A symlink with a target that is not allowed.
    #[error("the target {target:?} of symlink {name:?} is {wrong}")]
    Target {
        /// The symlink's name.
        name: String,
        /// Its target.
        target: String,
        /// What is wrong.
        wrong: &'static str,
    },
}

/// Whether symlinks may have absolute targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbsoluteTargets {
    /// They are refused, as the capabilities say.
    Refused,
    /// They are taken: where the input root is the action's `/`.
    Allowed,
}

/// Checks that a directory is in canonical form and names nothing outside of itself: nodes sorted, no name twice, no
/// name that is a path, valid digests, and no symlink with an absolute target.
pub fn check(directory: &Directory) -> Result<(), DirectoryFault> {
    check_with(directory, AbsoluteTargets::Refused)
}

/// As [`check`], with a say about symlinks.
pub fn check_with(directory: &Directory, absolute: AbsoluteTargets) -> Result<(), DirectoryFault> {
    let files = || directory.files.iter().map(|node| &*node.name);
    let directories = || directory.directories.iter().map(|node| &*node.name);
    let symlinks = || directory.symlinks.iter().map(|node| &*node.name);
    check_names(files())?;
    check_names(directories())?;
    check_names(symlinks())?;
    check_distinct(files(), directories())?;
    check_distinct(files(), symlinks())?;
    check_distinct(directories(), symlinks())?;
    for node in &directory.files {
        check_digest(&node.name, node.digest.as_ref())?;
    }
    for node in &directory.directories {
        check_digest(&node.name, node.digest.as_ref())?;
    }
    directory.symlinks.iter().try_for_each(|node| check_target(&node.name, &node.target, absolute))
}

/// Checks one name of a node.
pub fn check_name(name: &str) -> Result<(), DirectoryFault> {
    let bad = matches!(name, "" | "." | "..")
        || name.len() > NAME_MAX
        || name.bytes().any(|byte| matches!(byte, b'/' | b'\0'));
    if bad { Err(DirectoryFault::Name { name: name.chars().take(300).collect() }) } else { Ok(()) }
}

fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), DirectoryFault> {
    let mut last: Option<&str> = None;
    for name in names {
        check_name(name)?;
        match last.map(|last| last.cmp(name)) {
            None | Some(std::cmp::Ordering::Less) => {}
            Some(std::cmp::Ordering::Equal) => return Err(DirectoryFault::Duplicate { name: name.into() }),
            Some(std::cmp::Ordering::Greater) => {
                return Err(DirectoryFault::Order {
                    name: last.unwrap_or_default().into(),
                    after: name.into(),
                });
            }
        }
        last = Some(name);
    }
    Ok(())
}

/// Checks that two sorted lists have nothing in common.
fn check_distinct<'a>(
    left: impl Iterator<Item = &'a str>,
    right: impl Iterator<Item = &'a str>,
) -> Result<(), DirectoryFault> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    while let (Some(one), Some(other)) = (left.peek(), right.peek()) {
        match one.cmp(other) {
            std::cmp::Ordering::Less => drop(left.next()),
            std::cmp::Ordering::Greater => drop(right.next()),
            std::cmp::Ordering::Equal => return Err(DirectoryFault::Duplicate { name: (*one).into() }),
        }
    }
    Ok(())
}

fn check_digest(name: &str, digest: Option<&execution::Digest>) -> Result<(), DirectoryFault> {
    let wrong = |wrong| DirectoryFault::Digest { name: name.into(), wrong };
    let digest = digest.ok_or_else(|| wrong("it is not set".into()))?;
    // Hashes of all functions served look the same.
    from_proto(digest, DigestFunction::Sha256).map(drop).map_err(|error| wrong(error.to_string()))
}

fn check_target(name: &str, target: &str, absolute: AbsoluteTargets) -> Result<(), DirectoryFault> {
    let fault = |wrong| Err(DirectoryFault::Target { name: name.into(), target: target.into(), wrong });
    if target.is_empty() {
        return fault("empty");
    }
    if target.contains('\0') {
        return fault("no path");
    }
    match absolute {
        AbsoluteTargets::Refused if target.starts_with('/') => fault("absolute, which is not allowed"),
        AbsoluteTargets::Refused | AbsoluteTargets::Allowed => Ok(()),
    }
}

#[cfg(test)]
mod tests;
