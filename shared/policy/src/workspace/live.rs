//! The workspace keys of an accepted build.

use std::borrow::Cow;

use model::{Build, Context, ToolCall};

use super::{BuildKeys, keys};
use crate::actions::IMAGE_PROPERTY;

/// The keys of `build`, among builds of its group in the same image whose workspaces are filled from the same source.
pub fn live_keys(build: &Build) -> BuildKeys {
    let mut call: Cow<'_, ToolCall> = build.tool_call();
    let (kind, location) = source_of(&build.context);
    if let (Context::Git { revision, .. }, true) = (&build.context, call.branch.is_empty()) {
        call.to_mut().branch.clone_from(revision);
    }
    let image = build.requirements.0.get(IMAGE_PROPERTY).map_or("", String::as_str);
    keys(&[build.group.as_str(), kind, &location, image], &call)
}

/// Where a workspace is filled from: the kind of the source and its location, the same for all of its revisions.
pub(crate) fn source_of(context: &Context) -> (&'static str, Cow<'_, str>) {
    match context {
        Context::Empty => ("empty", "".into()),
        Context::Directory { path, .. } => ("directory", path.into()),
        Context::Tree { source: Some(source), .. } => ("tree", source.into()),
        Context::Tree { digest, source: None } => ("tree", digest.to_string().into()),
        Context::Git { url, .. } => ("git", url.into()),
        Context::Archive { location, .. } => ("archive", location.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use model::{
        Attempt, BuildId, Digest, Millis, Occupancy, Priority, WorkspaceKeys, WorkspaceKind, WorkspaceUse,
    };

    use super::*;
    use crate::workspace::IdleWorkspaces;

    fn git(url: &str, revision: &str) -> Context {
        Context::Git { url: url.into(), revision: revision.into(), patch: None }
    }

    fn build(group: &str, context: Context, command: &str) -> Build {
        Build {
            id: BuildId::generate(),
            group: group.parse().unwrap(),
            priority: Priority::Interactive,
            command: command.split(' ').map(str::to_owned).collect(),
            env: BTreeMap::new(),
            context,
            timeout_seconds: 1,
            queue_timeout_seconds: 1,
            lease_ttl_seconds: 1,
            max_attempts: Attempt::FIRST,
            outputs: Vec::new(),
            limits: model::BuildLimits::default(),
            require_outputs: false,
            labels: BTreeMap::new(),
            tool: None,
            workspace: WorkspaceUse::Warm,
            tool_hints: model::ToolHints::default(),
            requirements: model::BuildRequirements::default(),
            secrets: Vec::new(),
            services: Vec::new(),
            occupancy: Occupancy::default(),
            estimated_by: None,
            sends_actions: false,
            job: None,
            submitter: None,
            expected_ms: None,
            submitted_at_ms: Millis(0),
            request_digest: Digest::of(b""),
            traceparent: None,
        }
    }

    fn kind(last: &Build, next: &Build) -> Option<WorkspaceKind> {
        let mut idle = IdleWorkspaces::default();
        let kept: WorkspaceKeys = live_keys(last).workspace;
        idle.insert((), Some(kept));
        idle.choose(&live_keys(next)).map(|(kind, ())| kind)
    }

    #[test]
    fn the_revision_is_the_branch_where_none_was_named() {
        let main = build("g", git("url", "main"), "make all");
        assert_eq!(kind(&main, &main.clone()), Some(WorkspaceKind::Exact));
        let dev = build("g", git("url", "dev"), "make all");
        assert_eq!(kind(&main, &dev), Some(WorkspaceKind::Prefix));
        let named = |revision: &str| {
            let build = build("g", git("url", revision), "make all");
            let call = ToolCall { branch: "main".into(), ..build.tool_call().into_owned() };
            Build { tool: Some(call), ..build }
        };
        assert_eq!(kind(&named("0123abc"), &named("4567def")), Some(WorkspaceKind::Exact));
    }

    #[test]
    fn another_group_or_place_shares_nothing() {
        let first = build("g", git("url", "main"), "make all");
        let folder = || Context::Directory { path: "url".into(), ignore_files: false };
        let archive = |location: &str| Context::Archive { location: location.into(), digest: None };
        for other in [
            build("h", git("url", "main"), "make all"),
            build("g", git("other", "main"), "make all"),
            build("g", folder(), "make all"),
            build("g", Context::Empty, "make all"),
        ] {
            assert_eq!(kind(&first, &other), None, "{:?}", other.context);
        }
        for context in [folder(), Context::Empty, archive("/a.tar")] {
            let build = build("g", context, "make all");
            assert_eq!(kind(&build, &build.clone()), Some(WorkspaceKind::Exact));
        }
        let packed = |location| build("g", archive(location), "make all");
        assert_eq!(kind(&packed("/a.tar"), &packed("/b.tar")), None);
    }

    #[test]
    fn what_a_build_keeps_is_no_part_of_it() {
        let first = build("g", git("url", "main"), "make all");
        let patch = Context::Git { url: "url".into(), revision: "main".into(), patch: Some("x".into()) };
        let mut second = build("g", patch, "make all");
        second.env.insert("A".into(), "1".into());
        second.outputs.push("*".into());
        assert_eq!(live_keys(&first), live_keys(&second));
        assert_eq!(live_keys(&first).targets.len(), BTreeSet::from(["all"]).len());
    }
}
