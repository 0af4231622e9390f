use std::collections::BTreeSet;

use model::{BuildRequirements, ToolCall, WorkerId, WorkerProperties, WorkspaceKind};
use proptest::prelude::*;

use super::*;

/// Parses `branch version flag,flag target,target`; `-` is an empty part.
fn call(text: &str) -> ToolCall {
    let mut parts = text.split(' ').map(|part| if part == "-" { "" } else { part });
    let mut next = || parts.next().unwrap_or_default();
    let list = |text: &str| text.split(',').filter(|t| !t.is_empty()).map(str::to_owned).collect();
    ToolCall {
        branch: next().into(),
        tool_version: next().into(),
        flags: list(next()),
        targets: list(next()),
        command: "build".into(),
        ..ToolCall::default()
    }
}

fn idle(last: &[&str]) -> IdleWorkspaces<usize> {
    let mut all = IdleWorkspaces::default();
    for (id, text) in last.iter().enumerate() {
        let warm = (*text != "none").then(|| keys(&[], &call(text)).workspace);
        all.insert(id, warm);
    }
    all
}

fn choose(last: &[&str], build: &str) -> Option<(WorkspaceKind, usize)> {
    idle(last).choose(&keys(&[], &call(build)))
}

#[test]
fn the_same_build_finds_its_workspace_whatever_the_order() {
    let last = ["main 7 -x,-y a/b:t1,a/c:t2"];
    assert_eq!(choose(&last, "main 7 -y,-x,-x a/c:t2,a/b:t1"), Some((WorkspaceKind::Exact, 0)));
    let test = ToolCall { command: "test".into(), ..call(last[0]) };
    assert_eq!(
        idle(&last).choose(&keys(&[], &test)),
        Some((WorkspaceKind::Exact, 0)),
        "the command is not part of the key"
    );
}

#[test]
fn another_branch_shares_by_prefix_and_another_version_nothing() {
    let last = ["main 7 -x a/b:t1"];
    assert_eq!(choose(&last, "dev 7 -x a/b:t1"), Some((WorkspaceKind::Prefix, 0)));
    assert_eq!(choose(&last, "main 8 -x a/b:t1"), None);
    assert_eq!(choose(&last, "main 7 -z a/b:t1"), None, "flags are part of every key");
}

#[test]
fn every_target_must_share_something_in_one_workspace() {
    let last = ["main 7 - a/b:t1", "main 7 - a/c:t2"];
    assert_eq!(choose(&last, "main 7 - a/b:new"), Some((WorkspaceKind::Prefix, 0)));
    assert_eq!(choose(&last, "main 7 - a/b:new,a/c:new"), None, "one workspace has one, the other the other");
    assert_eq!(choose(&last, "main 7 - a/b:t1,a/d:t"), None);
    let both = ["main 7 - a/b:t1,a/c:t2,x:y"];
    assert_eq!(choose(&both, "main 7 - a/b:new,a/c:new"), Some((WorkspaceKind::Prefix, 0)));
}

#[test]
fn parents_and_names_that_look_alike_do_not_match() {
    let last = ["main 7 - a/b:t1"];
    for other in ["main 7 - a:t1", "main 7 - a/b/c:t1", "main 7 - a/bc:t1", "main 7 - a/:b"] {
        assert_eq!(choose(&last, other), None, "{other}");
    }
}

#[test]
fn a_wildcard_is_in_its_package() {
    assert_eq!(choose(&["main 7 - //foo/..."], "main 7 - //foo:a"), Some((WorkspaceKind::Prefix, 0)));
    assert_eq!(choose(&["main 7 - //foo:all"], "main 7 - //foo/..."), Some((WorkspaceKind::Prefix, 0)));
}

#[test]
fn what_never_ran_a_build_and_what_asks_for_no_target_match_only_exactly() {
    assert_eq!(choose(&["none"], "main 7 - a:b"), None);
    assert_eq!(choose(&["main 7 -x -"], "dev 7 -x -"), None);
    assert_eq!(choose(&["main 7 -x -"], "main 7 -x -"), Some((WorkspaceKind::Exact, 0)));
}

#[test]
fn of_several_the_one_that_shares_most_then_the_most_recent() {
    let last = ["a 7 - p:1,p:2", "a 7 - p:1,p:3", "a 7 - p:9", "b 7 - p:9"];
    assert_eq!(choose(&last, "main 7 - p:1,p:2"), Some((WorkspaceKind::Prefix, 0)));
    assert_eq!(choose(&last, "main 7 - p:5"), Some((WorkspaceKind::Prefix, 3)));
    let mut all = idle(&["a 7 - p:1", "a 7 - p:1"]);
    assert_eq!(all.choose(&keys(&[], &call("a 7 - p:1"))), Some((WorkspaceKind::Exact, 1)));
    all.remove(&1);
    assert_eq!(all.choose(&keys(&[], &call("a 7 - p:1"))), Some((WorkspaceKind::Exact, 0)));
    all.remove(&0);
    assert_eq!(all.choose(&keys(&[], &call("a 7 - p:1"))), None, "a busy one is not chosen");
}

#[test]
fn builds_of_another_scope_share_nothing() {
    let mut all = IdleWorkspaces::default();
    all.insert(0, Some(keys(&["core", "git", "url"], &call("main 7 - a:b")).workspace));
    assert_eq!(all.choose(&keys(&["core", "git", "other"], &call("main 7 - a:b"))), None);
}

#[test]
fn a_workspace_without_anything_is_worth_least() {
    let all = idle(&["a 7 - p:1", "none", "a 7 - p:1"]);
    let mut ids: Vec<usize> = (0..3).collect();
    ids.sort_by_key(|id| all.value(id));
    assert_eq!(ids, [1, 0, 2]);
}

#[test]
fn each_build_gets_another_workspace_and_the_cold_ones_go_first() {
    let all = idle(&["a 7 - p:1", "a 7 - p:1", "none"]);
    let (same, any) = (keys(&[], &call("a 7 - p:1")), BuildRequirements::default());
    let plain = Wish { keys: None, requirements: &any, avoid: &[] };
    let warm = Wish { keys: Some(&same), ..plain };
    let no_properties = WorkerProperties::default();
    let assigned = all.assign(&[plain, warm, warm, warm], vec![0, 1, 2, 9], |_| &no_properties, |_, _| false);
    let found: Vec<_> = assigned.into_iter().map(|a| a.map(|a| (a.workspace, a.kind))).collect();
    let exact = Some(WorkspaceKind::Exact);
    // 9 is unknown: nothing shows that it is warm.
    assert_eq!(
        found,
        [Some((2, None)), Some((1, exact)), Some((0, exact)), Some((9, Some(WorkspaceKind::New)))]
    );
    assert_eq!(all.assign(&[plain], Vec::<usize>::new(), |_| &no_properties, |_, _| false), [None]);
}

#[test]
fn a_workspace_is_chosen_for_its_warmth_only_if_its_worker_offers_what_the_build_requires() {
    let all = idle(&["a 7 - p:1", "none", "a 7 - p:1", "none"]);
    let same = keys(&[], &call("a 7 - p:1"));
    let with = |values: &[(&str, &str)]| {
        let owned = values.iter().map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()]));
        WorkerProperties(owned.collect())
    };
    // Workspaces 0 and 1 belong to a worker with a GPU.
    let (special, ordinary) = (with(&[("gpu", "1"), ("os", "x")]), with(&[("os", "x")]));
    let offers = |id: &usize| if *id < 2 { &special } else { &ordinary };
    let (any, gpu) = (BuildRequirements::default(), BuildRequirements([("gpu".into(), "1".into())].into()));
    let plain = Wish { keys: None, requirements: &any, avoid: &[] };
    let warm = Wish { keys: Some(&same), requirements: &any, avoid: &[] };
    let warm_gpu = Wish { keys: Some(&same), requirements: &gpu, avoid: &[] };
    let chosen = |builds: &[Wish<'_>]| -> Vec<Option<usize>> {
        let assigned = all.assign(builds, vec![0, 1, 2, 3], offers, |_, _| false);
        assigned.into_iter().map(|assignment| assignment.map(|assignment| assignment.workspace)).collect()
    };
    assert_eq!(chosen(&[plain]), [Some(3)], "the cold one of the ordinary worker");
    assert_eq!(chosen(&[warm_gpu]), [Some(0)], "2 is as warm and more recent, but has no GPU");
    assert_eq!(chosen(&[warm, warm, warm_gpu]), [Some(2), Some(3), Some(0)]);
    assert_eq!(chosen(&[warm_gpu, warm_gpu, warm_gpu]), [Some(0), Some(1), None]);
    let cold_gpu = Wish { keys: None, requirements: &gpu, avoid: &[] };
    assert_eq!(
        chosen(&[cold_gpu, cold_gpu, warm, warm]),
        [Some(1), Some(0), Some(2), Some(3)],
        "no other can run them"
    );
}

/// The rules of the paper, implemented literally by examining every workspace.
fn by_the_book(last: &[ToolCall], build: &ToolCall) -> Option<WorkspaceKind> {
    let set = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
    let same = |other: &ToolCall| {
        (&other.branch, &other.tool_version) == (&build.branch, &build.tool_version)
            && set(&other.flags) == set(&build.flags)
            && set(&other.targets) == set(&build.targets)
    };
    let prefixes = |call: &ToolCall, target: &String| {
        let package = target.rsplit_once(':').map_or(target.as_str(), |(package, _)| package);
        [target.clone(), package.to_owned()].map(|prefix| (set(&call.flags), prefix))
    };
    let overlaps = |other: &ToolCall| {
        let theirs: BTreeSet<_> = other.targets.iter().flat_map(|target| prefixes(other, target)).collect();
        other.tool_version == build.tool_version
            && !build.targets.is_empty()
            && build
                .targets
                .iter()
                .all(|target| prefixes(build, target).iter().any(|key| theirs.contains(key)))
    };
    match (last.iter().any(same), last.iter().any(overlaps)) {
        (true, _) => Some(WorkspaceKind::Exact),
        (false, true) => Some(WorkspaceKind::Prefix),
        (false, false) => None,
    }
}

fn calls() -> impl Strategy<Value = ToolCall> {
    let word = |words: &'static [&'static str]| prop::sample::select(words).prop_map(str::to_owned);
    let flags = prop::collection::vec(word(&["-x", "-y"]), 0..3);
    let targets = prop::collection::vec(word(&["a:1", "a:2", "a/b:1", "c:1", "c", "a"]), 0..4);
    (word(&["main", "dev"]), word(&["6", "7"]), flags, targets).prop_map(
        |(branch, tool_version, flags, targets)| ToolCall {
            branch,
            tool_version,
            flags,
            targets,
            ..ToolCall::default()
        },
    )
}

proptest! {
    #[test]
    fn it_finds_what_the_rules_find(last in prop::collection::vec(calls(), 0..8), build in calls()) {
        let mut all = IdleWorkspaces::default();
        for (id, call) in last.iter().enumerate() {
            all.insert(id, Some(keys(&[], call).workspace));
        }
        let found = all.choose(&keys(&[], &build));
        prop_assert_eq!(found.map(|(kind, _)| kind), by_the_book(&last, &build));
        if let Some((kind, id)) = found {
            prop_assert_eq!(Some(kind), by_the_book(&last[id..=id], &build), "the chosen one itself");
        }
    }

    #[test]
    fn the_order_of_flags_and_targets_does_not_matter(build in calls()) {
        let mut turned = build.clone();
        turned.flags.reverse();
        turned.targets.reverse();
        turned.targets.extend(build.targets.first().cloned());
        prop_assert_eq!(keys(&[], &build), keys(&[], &turned));
    }

    #[test]
    fn what_was_removed_leaves_nothing(calls in prop::collection::vec(calls(), 0..12)) {
        let mut all = IdleWorkspaces::default();
        for (id, call) in calls.iter().enumerate() {
            all.insert(id % 5, Some(keys(&[], call).workspace));
        }
        for id in 0..5 {
            all.remove(&id);
        }
        prop_assert!(all.is_empty());
        prop_assert!(calls.iter().all(|call| all.choose(&keys(&[], call)).is_none()));
    }
}

#[test]
fn a_build_that_a_worker_gave_back_goes_to_another_one() {
    let (any, none) = (BuildRequirements::default(), WorkerProperties::default());
    let (faulty, sound): (WorkerId, WorkerId) = ("faulty".parse().unwrap(), "sound".parse().unwrap());
    let avoid = [faulty.clone()];
    let given_back = Wish { keys: None, requirements: &any, avoid: &avoid };
    let plain = Wish { avoid: &[], ..given_back };
    let workers = [&faulty, &faulty, &sound];
    let all = IdleWorkspaces::<usize>::default();
    let chosen = |builds: &[Wish<'_>], sample: Vec<usize>| -> Vec<Option<usize>> {
        let assigned = all.assign(builds, sample, |_| &none, |id, worker| workers[*id] == worker);
        assigned.into_iter().map(|assignment| assignment.map(|it| it.workspace)).collect()
    };
    assert_eq!(chosen(&[plain, given_back, plain], vec![0, 1, 2]), [Some(0), Some(2), Some(1)]);
    assert_eq!(chosen(&[given_back], vec![0, 1]), [None]);
}
