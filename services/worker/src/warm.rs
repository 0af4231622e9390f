//! The warm workspace that a build leaves to the next one, and whether that build may use it.

use model::{Build, BuildRecord, Group, WorkspaceKeys, WorkspaceKind, WorkspaceUse};
use policy::workspace::{IdleWorkspaces, live_keys};

use crate::folder::RunFolder;

/// A warm workspace. Its shim may have survivors, too.
pub(crate) struct WarmWorkspace {
    /// The group that owns it. The keys distinguish groups too, but only as hashes.
    pub(crate) group: Group,
    /// Keys by which a similar build finds it.
    pub(crate) keys: WorkspaceKeys,
    pub(crate) folder: RunFolder,
}

/// The state of the workspace before the preparation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkspaceOrigin {
    /// Empty, and nothing will be kept.
    Fresh,
    /// Empty; the next build will find the files of this one.
    New,
    /// Holds the files of a similar build.
    Reused,
}

/// Whether files may be kept for the next build, and the state of the workspace before this one.
pub(crate) fn origin(wanted: bool, record: &BuildRecord, is_left: bool) -> (bool, WorkspaceOrigin) {
    match record.invocation().and_then(|run| run.workspace_kind) {
        Some(WorkspaceKind::Exact | WorkspaceKind::Prefix) if is_left => (wanted, WorkspaceOrigin::Reused),
        Some(WorkspaceKind::Exact | WorkspaceKind::Prefix | WorkspaceKind::New) if wanted => {
            (true, WorkspaceOrigin::New)
        }
        Some(WorkspaceKind::Exact | WorkspaceKind::Prefix | WorkspaceKind::New) | None => {
            (false, WorkspaceOrigin::Fresh)
        }
    }
}

/// The kind of `build`'s workspace, given the `offered` kind and the keys `left` there: the dispatcher's
/// information may be outdated.
pub(crate) fn kind(
    build: &Build,
    offered: Option<WorkspaceKind>,
    left: Option<(&Group, &WorkspaceKeys)>,
) -> Option<WorkspaceKind> {
    if build.workspace != WorkspaceUse::Warm {
        return None;
    }
    Some(match offered? {
        WorkspaceKind::New => WorkspaceKind::New,
        WorkspaceKind::Exact | WorkspaceKind::Prefix => {
            let mut idle = IdleWorkspaces::default();
            idle.insert((), left.filter(|(group, _)| **group == build.group).map(|(_, keys)| keys.clone()));
            idle.choose(&live_keys(build)).map_or(WorkspaceKind::New, |(kind, ())| kind)
        }
    })
}

#[cfg(test)]
mod tests {
    use model::{BuildRequest, Context};

    use super::*;
    use crate::testing;

    fn build(workspace: WorkspaceUse, revision: &str, target: &str) -> Build {
        let context = Context::Git { url: "u".into(), revision: revision.into(), patch: None };
        let request = BuildRequest {
            command: vec!["make".into(), target.into()],
            context,
            workspace: Some(workspace),
            ..BuildRequest::default()
        };
        testing::build("g", request)
    }

    #[test]
    fn what_is_left_decides() {
        use WorkspaceKind::{Exact, New, Prefix};
        let warm = |revision, target| build(WorkspaceUse::Warm, revision, target);
        let group: Group = "g".parse().unwrap();
        let left = live_keys(&warm("main", "a:b")).workspace;
        let cases = [
            (warm("main", "a:b"), Exact, Exact),
            (warm("main", "a:b"), Prefix, Exact),
            (warm("dev", "a:c"), Prefix, Prefix),
            (warm("dev", "a:c"), Exact, Prefix),
            (warm("main", "x:y"), Exact, New),
            (warm("main", "a:b"), New, New),
        ];
        for (build, offered, wanted) in cases {
            let found = kind(&build, Some(offered), Some((&group, &left)));
            assert_eq!(found, Some(wanted), "{:?}", build.command);
            assert_eq!(kind(&build, Some(offered), None), Some(New));
        }
    }

    #[test]
    fn another_group_gets_nothing_even_with_the_same_keys() {
        let build = build(WorkspaceUse::Warm, "main", "a:b");
        let (left, other) = (live_keys(&build).workspace, "h".parse().unwrap());
        let found = kind(&build, Some(WorkspaceKind::Exact), Some((&other, &left)));
        assert_eq!(found, Some(WorkspaceKind::New));
    }

    #[test]
    fn who_did_not_ask_gets_none() {
        let group: Group = "g".parse().unwrap();
        let fresh = build(WorkspaceUse::Fresh, "main", "a:b");
        let left = live_keys(&fresh).workspace;
        assert_eq!(kind(&fresh, Some(WorkspaceKind::Exact), Some((&group, &left))), None);
        assert_eq!(kind(&build(WorkspaceUse::Warm, "main", "a:b"), None, Some((&group, &left))), None);
    }
}
