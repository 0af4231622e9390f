//! Rules for the [`Directory`] messages of an input root.

use std::cmp::Ordering;

use model::DigestFunction;

use crate::{
    digest::from_proto,
    execution::{self, Directory},
};

/// Maximum length of a name in bytes: the limit of file systems.
pub const NAME_MAX: usize = 255;

/// The reason why a directory is not acceptable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryFault {
    /// A text that cannot be the name of a node.
    #[error("{name:?} is not a valid name of a file, directory or symlink")]
    Name { name: String },
    /// Two names are in the wrong order.
    #[error("{after:?} follows {name:?}, but nodes must be sorted by name")]
    Order {
        /// The first of the two, which should come later.
        name: String,
        /// The second of the two, which should come earlier.
        after: String,
    },
    /// Two nodes have the same name.
    #[error("two nodes have the name {name:?}")]
    Duplicate { name: String },
    /// A node has an invalid digest.
    #[error("invalid digest of {name:?}: {wrong}")]
    Digest { name: String, wrong: String },
    /// A symlink has a target that is not allowed.
    #[error("the target {target:?} of symlink {name:?} is {wrong}")]
    Target {
        /// Name of the symlink.
        name: String,
        target: String,
        wrong: &'static str,
    },
}

/// Whether symlinks may have absolute targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbsoluteTargets {
    /// Absolute targets are refused, as the capabilities state.
    Refused,
    /// Absolute targets are allowed: for an input root that becomes the action's `/`.
    Allowed,
}

/// Checks that a directory is in canonical form and references nothing outside of itself: sorted nodes, unique names,
/// no name that is a path, valid digests, and no symlink with an absolute target.
pub fn check(directory: &Directory) -> Result<(), DirectoryFault> {
    check_with(directory, AbsoluteTargets::Refused)
}

/// Like [`check`], with a choice about absolute symlinks.
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

/// Checks the name of one node.
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
        match last.map(|last| (last, last.cmp(name))) {
            None | Some((_, Ordering::Less)) => {}
            Some((_, Ordering::Equal)) => return Err(DirectoryFault::Duplicate { name: name.into() }),
            Some((last, Ordering::Greater)) => {
                return Err(DirectoryFault::Order { name: last.into(), after: name.into() });
            }
        }
        last = Some(name);
    }
    Ok(())
}

/// Checks that two sorted lists have no common element.
fn check_distinct<'a>(
    left: impl Iterator<Item = &'a str>,
    right: impl Iterator<Item = &'a str>,
) -> Result<(), DirectoryFault> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    while let (Some(one), Some(other)) = (left.peek(), right.peek()) {
        match one.cmp(other) {
            Ordering::Less => drop(left.next()),
            Ordering::Greater => drop(right.next()),
            Ordering::Equal => return Err(DirectoryFault::Duplicate { name: (*one).into() }),
        }
    }
    Ok(())
}

fn check_digest(name: &str, digest: Option<&execution::Digest>) -> Result<(), DirectoryFault> {
    let wrong = |wrong| DirectoryFault::Digest { name: name.into(), wrong };
    let digest = digest.ok_or_else(|| wrong("it is not set".into()))?;
    // The hashes of all supported functions have the same form.
    from_proto(digest, DigestFunction::Sha256).map(drop).map_err(|error| wrong(error.to_string()))
}

fn check_target(name: &str, target: &str, absolute: AbsoluteTargets) -> Result<(), DirectoryFault> {
    let fault = |wrong| Err(DirectoryFault::Target { name: name.into(), target: target.into(), wrong });
    if target.is_empty() {
        return fault("empty");
    }
    if target.contains('\0') {
        return fault("not a valid path");
    }
    match absolute {
        AbsoluteTargets::Refused if target.starts_with('/') => fault("absolute, which is not allowed"),
        AbsoluteTargets::Refused | AbsoluteTargets::Allowed => Ok(()),
    }
}

#[cfg(test)]
mod tests;
