//! The index of builds on a real Redis.

use std::{slice::from_ref, time::Duration};

use farm::Servers;
use index::{
    Applied, BusyWith, Change, CommitLimits, Heads, Held, Index, IndexEvent, Pick, QueueDepth, Settlement,
    StandingLimits, Traits, Verdict, Wanted,
};
use model::{
    BuildId, BuildKey, Esu, Group, Heartbeat, Millis, Occupancy, Priority, Sequence, WorkerCounts,
    WorkerStatus, Workspace, WorkspaceState,
};

const NOW: Millis = Millis(1_000_000);
const MOST: StandingLimits = StandingLimits { ahead: 10, running: 10, busy: 10, groups: 10 };
const SOON: Duration = Duration::from_secs(5);

struct Test {
    _servers: Servers,
    index: Index,
    last: u64,
}

fn occupancy(text: &str) -> Occupancy {
    let amount = |part: &str| {
        let (kind, units) = part.split_once('=').unwrap();
        (kind.parse().unwrap(), Esu::new(units.parse().unwrap()).unwrap())
    };
    text.split_whitespace().map(amount).collect()
}

fn key(group: &str) -> BuildKey {
    BuildKey { group: group.parse().unwrap(), id: BuildId::generate() }
}

fn workspace(slot: u16) -> Workspace {
    Workspace { worker: "w".parse().unwrap(), slot }
}

/// Heartbeat of a ready worker whose workspaces are all idle.
fn heartbeat(workspaces: usize) -> Heartbeat {
    Heartbeat {
        worker: "w".parse().unwrap(),
        host: "h".into(),
        pid: 1,
        started_at_ms: NOW,
        status: WorkerStatus::Ready,
        short: None,
        window: model::WindowState::default(),
        properties: model::WorkerProperties::default(),
        workspaces: vec![WorkspaceState::Idle { warm: None }; workspaces],
        ttl_ms: 60_000,
        clock_skew_ms: None,
    }
}

impl Test {
    /// Starts with an empty index, and one worker with this number of idle workspaces.
    async fn start(workspaces: usize) -> Self {
        let servers = Servers::prepare(0);
        servers.start_redis().await;
        // What the index needs is what users of a farm with access control have.
        servers.limit_redis(&index::acl_rules());
        let index = Index::connect(&servers.redis_url(), true).await.unwrap();
        let token = index.begin_rebuild().await.unwrap().unwrap();
        assert!(index.finish_rebuild(&token, Sequence(0), "fcfs").await.unwrap());
        let test = Self { _servers: servers, index, last: 0 };
        let heard = test.index.announce(&heartbeat(workspaces), b"{}", NOW).await.unwrap();
        assert_eq!(heard, (true, workspaces as u64));
        test
    }

    async fn apply(&mut self, key: &BuildKey, change: Change) {
        self.last += 1;
        let sequence = Sequence(self.last);
        let event = IndexEvent { key: key.clone(), sequence, change };
        let applied = self.index.apply(Sequence(self.last - 1), sequence, &[&event]).await.unwrap();
        assert_eq!(applied, Applied::Done(()));
    }

    async fn enqueue(&mut self, key: &BuildKey, occupies: &str) {
        self.enqueue_as(key, Priority::Batch, occupies).await;
    }

    async fn enqueue_as(&mut self, key: &BuildKey, priority: Priority, occupies: &str) {
        let rank = self.last + 1;
        let traits = Traits { occupancy: occupancy(occupies), ..Traits::default() };
        let expires_at = Millis(u64::MAX >> 12);
        self.apply(key, Change::Enqueued { priority, rank, first: true, expires_at, traits }).await;
    }

    async fn start_build(&mut self, key: &BuildKey, slot: u16, occupies: &str) {
        let traits = Traits { occupancy: occupancy(occupies), ..Traits::default() };
        let change = Change::Started { started_at: NOW, deadline: NOW, workspace: workspace(slot), traits };
        self.apply(key, change).await;
    }

    async fn heads(&self) -> Heads {
        self.heads_of(64, &[]).await
    }

    async fn heads_of(&self, groups_max: usize, groups: &[Group]) -> Heads {
        let wanted = Wanted { idle_max: 64, depth_min: 8, groups_max, groups_version: 0, groups };
        self.index.heads(NOW, wanted).await.unwrap()
    }

    async fn in_progress(&self, group: &str) -> Occupancy {
        let group: Group = group.parse().unwrap();
        let demands = self.index.demands(8).await.unwrap();
        demands.into_iter().find(|demand| demand.group == group).unwrap().in_progress
    }

    async fn commit(&self, picks: &[Pick]) -> Vec<Held> {
        self.commit_within(picks, CommitLimits::default()).await
    }

    async fn commit_keeping(&self, picks: &[Pick], kept: usize) -> Vec<Held> {
        self.commit_within(picks, CommitLimits { kept, ..CommitLimits::default() }).await
    }

    async fn commit_within(&self, picks: &[Pick], limits: CommitLimits) -> Vec<Held> {
        self.index.commit(picks, limits, NOW.after(SOON)).await.unwrap().1
    }
}

fn picks(heads: &Heads, group: usize, slots: &[u16]) -> Vec<Pick> {
    let head = &heads.groups[group];
    let pick = |(build, slot): (&index::WaitingBuild, &u16)| Pick {
        key: BuildKey { group: head.group.clone(), id: build.id },
        version: head.version,
        sequence: build.sequence,
        workspace: workspace(*slot),
        kind: None,
        counts_as: None,
    };
    head.builds.iter().zip(slots).map(pick).collect()
}

#[tokio::test]
async fn depths_count_what_waits_in_all_queues_by_priority() {
    let mut test = Test::start(1).await;
    let nothing = QueueDepth::default();
    let depths = test.index.depths().await.unwrap().unwrap();
    assert_eq!(depths.running, 0);
    assert_eq!(depths.queues, Priority::ALL.map(|priority| (priority, nothing)).into());
    let urgent = key("one");
    test.enqueue_as(&urgent, Priority::Emergency, "x86=1").await;
    let waiting = ["one", "two", "two"].map(key);
    for waits in &waiting {
        test.enqueue_as(waits, Priority::Batch, "x86=1").await;
    }
    test.start_build(&urgent, 0, "x86=1").await;
    let depths = test.index.depths().await.unwrap().unwrap();
    assert_eq!(depths.running, 1);
    assert_eq!(depths.queues[&Priority::Batch], QueueDepth { waiting: 3, oldest: Some(Sequence(2)) });
    assert_eq!(depths.queues[&Priority::Emergency], nothing);
    let of_groups =
        test.index.waiting_counts(&["two", "none", "one"].map(|name| name.parse().unwrap())).await.unwrap();
    let counts: Vec<_> =
        of_groups.iter().map(|it| (it.group.as_str(), it.priority, it.count, it.first)).collect();
    let (two, one) = (waiting[1].id, waiting[0].id);
    assert_eq!(counts, [("two", Priority::Batch, 2, two), ("one", Priority::Batch, 1, one)]);
    assert!(test.index.begin_rebuild().await.unwrap().is_some());
    assert_eq!(test.index.depths().await.unwrap(), None, "the index is not complete");
}

#[tokio::test]
async fn of_the_idle_workspaces_those_that_are_kept_are_left_to_emergencies() {
    let mut test = Test::start(3).await;
    let (one, two, urgent) = (key("g"), key("g"), key("h"));
    test.enqueue(&one, "x86=1").await;
    test.enqueue(&two, "x86=1").await;
    test.enqueue_as(&urgent, Priority::Emergency, "x86=1").await;
    let heads = test.heads().await;
    assert_eq!((heads.all_idle, heads.idle.len()), (3, 3));
    let of = |group: &str| heads.groups.iter().position(|head| head.group.as_str() == group).unwrap();
    let [others, emergencies] = [of("g"), of("h")];
    assert_eq!(heads.groups[emergencies].builds[0].priority, Priority::Emergency);
    assert_eq!(heads.groups[others].builds[1].priority, Priority::Batch);
    // Two dispatchers read the same state: together they leave what is kept.
    let both = picks(&heads, others, &[0, 1]);
    assert_eq!(test.commit_keeping(&both, 2).await, [Held::Yes, Held::No]);
    assert_eq!(test.commit_keeping(&both[1..], 2).await, [Held::No]);
    assert_eq!(test.commit_keeping(&picks(&heads, emergencies, &[1]), 2).await, [Held::Yes]);
    assert_eq!(test.heads().await.all_idle, 1);
}

#[tokio::test]
async fn groups_with_an_emergency_are_read_beyond_the_limit_as_long_as_it_waits() {
    let mut test = Test::start(2).await;
    let (other, batch, urgent) = (key("other"), key("g"), key("g"));
    test.enqueue(&other, "x86=1").await;
    test.enqueue(&batch, "x86=1").await;
    test.enqueue_as(&urgent, Priority::Emergency, "x86=1").await;
    let names = async |test: &Test| {
        let heads = test.heads_of(1, from_ref(&other.group)).await;
        let names: Vec<String> = heads.groups.iter().map(|head| head.group.to_string()).collect();
        (names, heads)
    };
    let (found, heads) = names(&test).await;
    assert_eq!(found, ["other", "g"], "it was not drawn");
    assert_eq!(test.commit(&picks(&heads, 1, &[0])).await, [Held::Yes]);
    assert_eq!(names(&test).await.0, ["other"], "no emergency waits");
}

#[tokio::test]
async fn what_is_in_progress_is_counted_from_the_offer_to_the_end() {
    let mut test = Test::start(2).await;
    let (first, second) = (key("g"), key("g"));
    test.enqueue(&first, "x86=2.5 gpu=1").await;
    test.enqueue(&second, "x86=100000000.000001").await;
    let picked = picks(&test.heads().await, 0, &[0, 1]);
    assert_eq!(test.commit(&picked[..1]).await, [Held::Yes]);
    assert_eq!(test.in_progress("g").await, occupancy("x86=2.5 gpu=1"), "offered");
    test.start_build(&first, 0, "x86=2.5 gpu=1").await;
    assert_eq!(test.in_progress("g").await, occupancy("x86=2.5 gpu=1"), "running: counted once");
    let picked = picks(&test.heads().await, 0, &[1]);
    assert_eq!(test.commit(&picked).await, [Held::Yes]);
    assert_eq!(test.in_progress("g").await, occupancy("x86=100000002.500001 gpu=1"), "exact, however large");
    let refused = Settlement {
        key: second.clone(),
        sequence: picked[0].sequence,
        workspace: workspace(1),
        verdict: Verdict::Busy,
    };
    assert_eq!(test.index.settle(&[refused]).await.unwrap(), 1);
    assert_eq!(test.in_progress("g").await, occupancy("x86=2.5 gpu=1"), "a refused offer no longer counts");
    test.apply(&first, Change::Finished { ended_at: NOW, workspace: Some(workspace(0)), only: false }).await;
    assert_eq!(test.in_progress("g").await, Occupancy::default());
    let demand = test.index.demands(8).await.unwrap().remove(0);
    assert_eq!(demand.ended, occupancy("x86=2.5 gpu=1"));
    assert_eq!(
        (demand.queued, demand.waiting[0].traits.occupancy.clone()),
        (1, occupancy("x86=100000000.000001"))
    );
}

#[tokio::test]
async fn an_offer_that_ran_out_counts_until_it_is_known_that_nobody_took_it() {
    let mut test = Test::start(2).await;
    let (taken, lost) = (key("g"), key("g"));
    test.enqueue(&taken, "x86=2").await;
    test.enqueue(&lost, "x86=3").await;
    let picked = picks(&test.heads().await, 0, &[0, 1]);
    assert_eq!(test.commit(&picked).await, [Held::Yes, Held::Yes]);
    assert_eq!(test.index.run_out(NOW, 10).await.unwrap(), [], "the deadline has not passed");
    let late = NOW.after(SOON + SOON);
    let mut found = test.index.run_out(late, 10).await.unwrap();
    found.sort_by_key(|(_, sequence)| *sequence);
    assert_eq!(found, [(taken.clone(), Sequence(1)), (lost.clone(), Sequence(2))]);
    // The first was started and its event is on the way.
    let later = late.after(SOON);
    let back = test.index.take_back(late, later, from_ref(&taken), from_ref(&lost)).await.unwrap();
    assert_eq!(back, (1, 1));
    assert_eq!(test.in_progress("g").await, occupancy("x86=2"));
    assert_eq!(test.index.run_out(late, 10).await.unwrap(), []);
    test.start_build(&taken, 0, "x86=2").await;
    assert_eq!(test.in_progress("g").await, occupancy("x86=2"), "counted once");
    assert!(test.heads().await.idle.is_empty(), "a worker that let an offer expire is offered nothing");
}

#[tokio::test]
async fn a_build_of_nothing_goes_its_way_like_any_other() {
    let mut test = Test::start(1).await;
    let (nothing, next) = (key("g"), key("g"));
    test.enqueue(&nothing, "x86=0 gpu=1").await;
    test.enqueue(&next, "").await;
    let picked = picks(&test.heads().await, 0, &[0]);
    assert_eq!(test.commit(&picked).await, [Held::Yes]);
    let busy = Settlement {
        key: nothing.clone(),
        sequence: Sequence(1),
        workspace: workspace(0),
        verdict: Verdict::Failed(NOW),
    };
    assert_eq!(test.index.settle(&[busy]).await.unwrap(), 0);
    assert_eq!(test.index.take_back(NOW, NOW, &[], from_ref(&nothing)).await.unwrap().0, 1);
    let picked = picks(&test.heads().await, 0, &[0]);
    assert_eq!(test.commit(&picked).await, [Held::Yes]);
    test.start_build(&nothing, 0, "x86=0 gpu=1").await;
    assert_eq!(test.in_progress("g").await, occupancy("gpu=1"));
    test.apply(&nothing, Change::Finished { ended_at: NOW, workspace: Some(workspace(0)), only: false })
        .await;
    let heads = test.heads().await;
    assert_eq!(heads.idle, [workspace(0)], "its workspace is free again");
    assert_eq!(heads.groups[0].builds[0].traits, Traits::usual(), "no known type: the default traits");
}

#[tokio::test]
async fn a_build_counts_as_what_it_was_offered_as() {
    let mut test = Test::start(1).await;
    let large = key("g");
    test.enqueue(&large, "x86=5000").await;
    let mut picked = picks(&test.heads().await, 0, &[0]);
    picked[0].counts_as = Some(Traits { occupancy: occupancy("x86=40"), ..Traits::default() });
    assert_eq!(test.commit(&picked).await, [Held::Yes]);
    assert_eq!(test.in_progress("g").await, occupancy("x86=40"));
    test.start_build(&large, 0, "x86=5000").await;
    assert_eq!(test.in_progress("g").await, occupancy("x86=40"));
    test.apply(&large, Change::Finished { ended_at: NOW, workspace: Some(workspace(0)), only: false }).await;
    assert!(test.index.demands(8).await.unwrap().is_empty(), "no demand is left");
}

/// Limits of a dispatcher that read these heads while executors limit builds.
fn of_executors(heads: &Heads) -> CommitLimits {
    CommitLimits { executors: Some(heads.on_executors_version), ..CommitLimits::default() }
}

#[tokio::test]
async fn an_emergency_with_actions_is_committed_whatever_others_started_and_is_counted() {
    let mut test = Test::start(4).await;
    let traits = Traits { sends_actions: true, occupancy: occupancy("x86=3"), ..Traits::default() };
    let builds = [
        (key("a"), Priority::Batch),
        (key("b"), Priority::Emergency),
        (key("b"), Priority::Batch),
        (key("c"), Priority::Batch),
    ];
    for (build, priority) in &builds {
        let (rank, expires_at) = (test.last + 1, Millis(u64::MAX >> 12));
        let (priority, traits) = (*priority, traits.clone());
        test.apply(build, Change::Enqueued { priority, rank, first: true, expires_at, traits }).await;
    }
    let heads = test.heads().await;
    let group = |name: &str| heads.groups.iter().position(|head| head.group.as_str() == name).unwrap();
    let limits = of_executors(&heads);
    assert_eq!(test.commit_within(&picks(&heads, group("a"), &[0]), limits).await, [Held::Yes]);
    // Another dispatcher read the sum before: of its builds with actions, only the emergency starts.
    let of_b = picks(&heads, group("b"), &[1, 2]);
    assert_eq!(test.commit_within(&of_b, limits).await, [Held::Yes, Held::No]);
    let again = test.heads().await;
    assert_eq!(again.on_executors, occupancy("x86=6"));
    assert!(again.on_executors_version > heads.on_executors_version + 1, "the emergency is counted");
    assert_eq!(test.commit_within(&picks(&heads, group("c"), &[2]), limits).await, [Held::No]);
}

#[tokio::test]
async fn builds_that_run_actions_are_counted_over_all_groups() {
    let mut test = Test::start(4).await;
    let sending =
        |occupies: &str| Traits { sends_actions: true, occupancy: occupancy(occupies), ..Traits::default() };
    let keys = [key("a"), key("b"), key("b")];
    for (at, build) in keys.iter().enumerate() {
        let traits = if at < 2 { sending("x86=3") } else { Traits::usual() };
        let expires_at = Millis(u64::MAX >> 12);
        let rank = test.last + 1;
        let change = Change::Enqueued { priority: Priority::Batch, rank, first: true, expires_at, traits };
        test.apply(build, change).await;
    }
    let heads = test.heads().await;
    assert_eq!(heads.on_executors, Occupancy::default());
    let group = |name: &str| heads.groups.iter().position(|head| head.group.as_str() == name).unwrap();
    let (of_a, of_b) = (picks(&heads, group("a"), &[0]), picks(&heads, group("b"), &[1, 2]));
    let limits = of_executors(&heads);
    assert_eq!(test.commit_within(&of_a, limits).await, [Held::Yes]);
    // Another dispatcher read the sum before: its build with actions waits, and the next of its group behind it.
    assert_eq!(test.commit_within(&of_b, limits).await, [Held::No, Held::No]);
    let heads = test.heads().await;
    assert_eq!(heads.on_executors, occupancy("x86=3"));
    let again = test.commit_within(&of_b, of_executors(&heads)).await;
    assert_eq!(again, [Held::Yes, Held::Yes], "one commit is compared once");
    let started =
        Change::Started { started_at: NOW, deadline: NOW, workspace: workspace(0), traits: sending("x86=3") };
    test.apply(&keys[0], started).await;
    assert_eq!(test.index.executor_demand().await.unwrap().in_progress, occupancy("x86=6"));
    for (at, build) in keys.iter().enumerate() {
        let workspace = Some(workspace(u16::try_from(at).unwrap()));
        test.apply(build, Change::Finished { ended_at: NOW, workspace, only: false }).await;
    }
    let demand = test.index.executor_demand().await.unwrap();
    assert_eq!(demand.in_progress, Occupancy::default());
    assert_eq!(demand.ended, occupancy("x86=3"), "one of them ran");
}

#[tokio::test]
async fn while_no_workspace_is_idle_no_names_are_told() {
    let mut test = Test::start(0).await;
    for group in ["a", "b", "c"] {
        test.enqueue(&key(group), "x86=1").await;
    }
    let heads = test.heads_of(2, &[]).await;
    assert_eq!((heads.names.len(), heads.groups_version), (0, None));
}

#[tokio::test]
async fn two_dispatchers_do_not_spend_one_budget_twice() {
    let mut test = Test::start(3).await;
    for _ in 0..2 {
        test.enqueue(&key("g"), "x86=1").await;
    }
    test.enqueue(&key("h"), "x86=1").await;
    // Both dispatchers have read the same heads.
    let heads = test.heads().await;
    let of = |name: &str| heads.groups.iter().position(|head| head.group.as_str() == name).unwrap();
    let (one, mut other) = (picks(&heads, of("g"), &[0]), picks(&heads, of("g"), &[1, 1])[1..].to_vec());
    other.extend(picks(&heads, of("h"), &[2]));
    assert_eq!(test.commit(&one).await, [Held::Yes]);
    assert_eq!(
        test.commit(&other).await,
        [Held::No, Held::Yes],
        "group g's budget was spent from, h's was not"
    );
    let again = picks(&test.heads().await, 0, &[1]);
    assert_eq!(test.commit(&again).await, [Held::Yes], "after reading again the pick is valid");
}

#[tokio::test]
async fn no_later_build_is_committed_that_was_read_before_an_offer_was_refused() {
    for is_refused in [true, false] {
        let mut test = Test::start(2).await;
        let (urgent, late) = (key("g"), key("g"));
        test.enqueue_as(&urgent, Priority::Emergency, "x86=1").await;
        test.enqueue(&late, "x86=1").await;
        let offered = picks(&test.heads().await, 0, &[0]);
        assert_eq!((offered[0].key.id, test.commit(&offered).await), (urgent.id, vec![Held::Yes]));
        // A dispatcher reads while the urgent build is offered, and commits after it is back in its queue.
        let read_before = picks(&test.heads().await, 0, &[1]);
        assert_eq!(read_before[0].key.id, late.id);
        if is_refused {
            let Pick { key, sequence, workspace, .. } = offered[0].clone();
            let refused = Settlement { key, sequence, workspace, verdict: Verdict::Busy };
            assert_eq!(test.index.settle(&[refused]).await.unwrap(), 1);
        } else {
            let at = NOW.after(SOON + SOON);
            assert_eq!(test.index.take_back(at, at, &[], from_ref(&urgent)).await.unwrap(), (1, 1));
            let heard = test.index.announce(&heartbeat(2), b"{}", NOW).await.unwrap();
            assert_eq!(heard, (true, 2));
        }
        assert_eq!(test.commit(&read_before).await, [Held::No], "the urgent build waits again");
        let again = picks(&test.heads().await, 0, &[1]);
        assert_eq!((again[0].key.id, test.commit(&again).await), (urgent.id, vec![Held::Yes]));
    }
}

#[tokio::test]
async fn a_heartbeat_that_is_older_than_the_start_of_a_build_makes_no_workspace_idle() {
    let mut test = Test::start(1).await;
    let build = key("g");
    let older = heartbeat(1);
    for ends in [false, true] {
        test.enqueue(&build, "x86=1").await;
        let picked = picks(&test.heads().await, 0, &[0]);
        assert_eq!(test.commit(&picked).await, [Held::Yes]);
        assert_eq!(test.index.announce(&older, b"{}", NOW).await.unwrap(), (true, 0), "offered");
        test.start_build(&build, 0, "x86=1").await;
        assert_eq!(test.index.announce(&older, b"{}", NOW).await.unwrap(), (true, 0), "running");
        if ends {
            let ended = Change::Finished { ended_at: NOW, workspace: Some(workspace(0)), only: false };
            test.apply(&build, ended).await;
        } else {
            // Its run is lost, and the worker says later that the workspace is free.
            test.enqueue(&build, "x86=1").await;
            assert_eq!(test.index.announce(&heartbeat(1), b"{}", NOW).await.unwrap(), (true, 1));
        }
        test.enqueue(&key("g"), "x86=1").await;
        assert_eq!(test.heads().await.idle, [workspace(0)]);
    }
}

#[tokio::test]
async fn a_pick_is_good_once_and_needs_its_workspace() {
    let mut test = Test::start(1).await;
    for _ in 0..3 {
        test.enqueue(&key("g"), "x86=1").await;
    }
    let picked = picks(&test.heads().await, 0, &[0, 0, 0]);
    assert_eq!(test.commit(&picked).await, [Held::Yes, Held::NotIdle, Held::No], "none overtakes the second");
    assert_eq!(test.commit(&picked[..1]).await, [Held::No]);
}

#[tokio::test]
async fn of_many_groups_those_are_read_that_were_chosen() {
    let mut test = Test::start(1).await;
    for group in ["a", "b", "c"] {
        test.enqueue(&key(group), "x86=1").await;
    }
    let heads = test.heads_of(2, &[]).await;
    assert!(heads.groups.is_empty());
    let mut names: Vec<&str> = heads.names.iter().map(Group::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "c"]);
    let chosen = [heads.names[1].clone()];
    let heads = test.heads_of(2, &chosen).await;
    assert_eq!(heads.groups.iter().map(|head| &head.group).collect::<Vec<_>>(), [&chosen[0]]);
    assert_eq!(test.heads().await.groups.len(), 3, "a small number of groups is read at once");
}

#[tokio::test]
async fn a_group_whose_queue_emptied_is_not_looked_at() {
    let mut test = Test::start(2).await;
    test.enqueue(&key("a"), "x86=1").await;
    test.enqueue(&key("z"), "x86=1").await;
    let heads = test.heads().await;
    let a = heads.groups.iter().position(|head| head.group.as_str() == "a").unwrap();
    assert_eq!(test.commit(&picks(&heads, a, &[0])).await, [Held::Yes]);
    let heads = test.heads().await;
    assert_eq!(heads.groups.iter().map(|head| head.group.as_str()).collect::<Vec<_>>(), ["z"]);
    assert_eq!(heads.waiting_groups, 1);
}

#[tokio::test]
async fn why_tells_the_place_and_what_is_before_it() {
    let mut test = Test::start(1).await;
    let keys = [key("g"), key("g"), key("g")];
    for (at, key) in keys.iter().enumerate() {
        test.enqueue(key, &format!("x86={}", at + 1)).await;
    }
    let picked = picks(&test.heads().await, 0, &[0]);
    assert_eq!(test.commit(&picked).await, [Held::Yes]);
    test.start_build(&keys[0], 0, "x86=1").await;
    let standing = test.index.standing(&keys[2], MOST).await.unwrap();
    assert_eq!((standing.place, standing.queued, standing.idle), (Some(1), 2, 0));
    assert_eq!(standing.ahead.iter().map(|build| build.id).collect::<Vec<_>>(), [keys[1].id, keys[2].id]);
    assert_eq!(standing.running.iter().map(|build| build.id).collect::<Vec<_>>(), [keys[0].id]);
    assert_eq!(standing.in_progress, occupancy("x86=1"));
    test.apply(&keys[0], Change::Finished { ended_at: NOW, workspace: Some(workspace(0)), only: false })
        .await;
    assert_eq!(test.index.standing(&keys[2], MOST).await.unwrap().ends, [NOW]);
    assert_eq!(test.index.standing(&keys[0], MOST).await.unwrap().place, None, "it no longer waits");
}

#[tokio::test]
async fn how_long_builds_will_take_is_known_from_the_queue_to_the_end() {
    let mut test = Test::start(2).await;
    let (running, offered, waiting, other) = (key("g"), key("g"), key("g"), key("h"));
    for (at, key) in [&running, &offered, &waiting, &other].into_iter().enumerate() {
        let (rank, expires_at) = (test.last + 1, Millis(u64::MAX >> 12));
        // The second has other than the default traits.
        let occupancy = if at == 1 { occupancy("x86=2") } else { Traits::usual().occupancy };
        let traits = Traits { occupancy, expected_ms: Some(1000 * (at as u64 + 1)), ..Traits::default() };
        let change = Change::Enqueued { priority: Priority::Batch, rank, first: true, expires_at, traits };
        test.apply(key, change).await;
    }
    let heads = test.heads().await;
    let own = heads.groups.iter().position(|head| head.group.as_str() == "g").unwrap();
    assert_eq!(test.commit(&picks(&heads, own, &[0, 1])).await, [Held::Yes, Held::Yes]);
    let traits = Traits { expected_ms: Some(1000), ..Traits::usual() };
    let started =
        Change::Started { started_at: NOW, deadline: NOW, workspace: workspace(0), traits: traits.clone() };
    test.apply(&running, started).await;
    let standing = test.index.standing(&waiting, MOST).await.unwrap();
    let expected: Vec<Option<u64>> = standing.ahead.iter().map(|build| build.traits.expected_ms).collect();
    assert_eq!(expected, [Some(3000)]);
    let with = |since, expected_ms| BusyWith { own: true, since, expected_ms: Some(expected_ms) };
    assert_eq!(standing.busy_with, [with(Some(NOW), 1000), with(None, 2000)]);
    assert_eq!((standing.busy, standing.waiting_groups), (2, 2));
    let mut groups: Vec<&str> = standing.some_waiting.iter().map(Group::as_str).collect();
    groups.sort_unstable();
    assert_eq!(groups, ["g", "h"]);
    let elsewhere = test.index.standing(&other, MOST).await.unwrap();
    assert!(elsewhere.busy_with.iter().all(|build| !build.own));
}

#[tokio::test]
async fn a_page_goes_on_where_the_head_ended() {
    let mut test = Test::start(1).await;
    let keys: Vec<BuildKey> = (0..5).map(|_| key("g")).collect();
    for key in &keys {
        test.enqueue(key, "x86=1").await;
    }
    let page = test.index.page(&keys[0].group, 3, 10).await.unwrap();
    assert_eq!(page.iter().map(|build| build.id).collect::<Vec<_>>(), [keys[3].id, keys[4].id]);
}

#[tokio::test]
async fn workers_are_counted_by_why_they_take_no_builds() {
    let test = Test::start(1).await;
    let announce = async |worker: &str, status: WorkerStatus| {
        let heartbeat = Heartbeat { worker: worker.parse().unwrap(), status, ..heartbeat(1) };
        test.index.announce(&heartbeat, b"{}", NOW).await.unwrap();
    };
    announce("drains", WorkerStatus::Draining).await;
    announce("full", WorkerStatus::Full).await;
    let counts = |ready, draining, full| WorkerCounts { ready, draining, full };
    assert_eq!(test.index.worker_counts(NOW).await.unwrap(), counts(1, 1, 1));
    announce("full", WorkerStatus::Draining).await;
    assert_eq!(test.index.worker_counts(NOW).await.unwrap(), counts(1, 2, 0));
    announce("full", WorkerStatus::Ready).await;
    assert_eq!(test.index.worker_counts(NOW).await.unwrap(), counts(2, 1, 0));
}
