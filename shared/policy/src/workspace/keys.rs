//! The keys by which builds share a workspace.

use std::collections::BTreeSet;

use model::{ToolCall, WarmKey, WorkspaceKeys};

use crate::hash::Hasher;

/// The keys by which a waiting build finds a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildKeys {
    /// The keys stored for the workspace after the build.
    pub workspace: WorkspaceKeys,
    /// The keys of each of its targets.
    pub targets: BTreeSet<TargetKeys>,
}

/// The two keys of a target, each including all flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TargetKeys {
    /// Key of the whole target.
    pub target: WarmKey,
    /// Key of the package of the target.
    pub package: WarmKey,
}

/// The keys of a tool call, among builds of the same `scope`: builds of different repositories or groups share nothing.
///
/// Flags and targets count as sets. The command's name and the base revision of a change are not part of the keys.
pub fn keys(scope: &[&str], call: &ToolCall) -> BuildKeys {
    let flags: BTreeSet<&str> = call.flags.iter().map(String::as_str).collect();
    let targets: BTreeSet<&str> = call.targets.iter().map(String::as_str).collect();
    let flagged = Hasher::new("prefix").all(scope.iter().copied()).all(flags.iter().copied());
    let keys_of = |target: &&str| TargetKeys {
        target: WarmKey(flagged.clone().text(target).key()),
        package: WarmKey(flagged.clone().text(package(target)).key()),
    };
    let target_keys: BTreeSet<TargetKeys> = targets.iter().map(keys_of).collect();
    let exact = Hasher::new("exact")
        .all(scope.iter().copied())
        .text(&call.branch)
        .text(&call.tool_version)
        .all(flags.iter().copied())
        .all(targets.iter().copied());
    let prefixes = target_keys.iter().flat_map(|keys| [keys.target, keys.package]).collect();
    let version = WarmKey(Hasher::new("version").text(&call.tool_version).key());
    BuildKeys {
        workspace: WorkspaceKeys { exact: WarmKey(exact.key()), version, prefixes },
        targets: target_keys,
    }
}

/// The package of a target: the part before its name. `//foo/...` is in package `//foo`.
fn package(target: &str) -> &str {
    match target.rsplit_once(':') {
        Some((package, _)) => package,
        None => target.strip_suffix("/...").unwrap_or(target),
    }
}
