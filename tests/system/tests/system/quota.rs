//! Quotas on a live farm: shares, priorities, targets, and their reports.

use std::{collections::BTreeMap, time::Duration};

use bus::{EventSubject, Follower, QuotaOf, Start, stream};
use farm::{Farm, SOON};
use futures::StreamExt as _;
use model::{
    BuildKey, BuildRecord, BuildRequest, Esu, ExecutorType, Governed, GovernorRecord, Millis, Occupancy,
    Outcome, Priority, Quota, Sequence, State,
};

use crate::check::{ended, ended_as, request, script};

pub(crate) fn esu(units: f64) -> Esu {
    Esu::new(units).unwrap()
}

pub(crate) fn x86(units: f64) -> Occupancy {
    Occupancy::of_each([ExecutorType::x86()], esu(units))
}

pub(crate) async fn set_quota(farm: &Farm, group: &str, units: f64) {
    let whose = QuotaOf::Group(group.parse().unwrap());
    farm.bus().buckets().put(&whose, Some(&Quota { esu: x86(units) })).await.unwrap();
}

/// Waits for a decision of the governor that `wanted` accepts.
pub(crate) async fn decided(farm: &Farm, wanted: impl Fn(&GovernorRecord) -> bool) -> GovernorRecord {
    let looks = async {
        loop {
            let (_, record) = farm.bus().buckets().get::<GovernorRecord>(&()).await.unwrap();
            let record = record.unwrap_or_default();
            if wanted(&record) {
                return record;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, looks).await.expect("the governor decides")
}

/// Queues `count` builds of `request` in each group, many at a time.
pub(crate) async fn queue(
    farm: &Farm,
    groups: &[&str],
    count: usize,
    priority: Priority,
    request: &BuildRequest,
) {
    let one = |at: usize| {
        let group = groups[at % groups.len()];
        let request = BuildRequest {
            id: Some(model::BuildId::generate()),
            priority: Some(priority),
            ..request.clone()
        };
        async move {
            farm.client().create(&group.parse().unwrap(), &request, None).await.unwrap();
        }
    };
    futures::stream::iter((0..count * groups.len()).map(one)).buffer_unordered(200).count().await;
}

/// Follows every past and future lifecycle message, in order.
fn lifecycles(farm: &Farm) -> Follower {
    Follower::new(farm.bus(), stream::EVENTS, EventSubject::LIFECYCLES, Start::After(Sequence(0)))
}

/// Reads lifecycle messages until `done` returns true.
pub(crate) async fn follow(
    farm: &Farm,
    limit: Duration,
    mut done: impl FnMut(Sequence, &BuildRecord) -> bool,
) {
    let mut follower = lifecycles(farm);
    let all = async {
        loop {
            follower.open().await;
            for stored in follower.next(500).await {
                if done(stored.sequence, &stored.record().unwrap()) {
                    return;
                }
            }
        }
    };
    tokio::time::timeout(limit, all).await.expect("the builds come so far in time");
}

#[tokio::test]
async fn two_groups_share_as_their_quotas_say() {
    const STARTS: usize = 2000;
    let farm = Farm::builder()
        .with("governor")
        .env("FOREBAY_GOVERNOR_TICK_MS", "500")
        .env("FOREBAY_WORKSPACES", "4")
        .without("gateway")
        .start()
        .await;
    set_quota(&farm, "large", 30.0).await;
    set_quota(&farm, "small", 10.0).await;
    decided(&farm, |record| record.groups.len() == 2).await;
    let worker = farm.take("worker");
    drop(worker);
    // All builds wait before the first starts, and neither group runs out of builds.
    queue(&farm, &["large", "small"], STARTS, Priority::Batch, &request(&["true"])).await;
    farm.keep(farm.spawn("worker").await);
    let mut starts: BTreeMap<String, usize> = BTreeMap::new();
    follow(&farm, Duration::from_secs(90), |_, record| {
        if record.state() == State::InProgress {
            *starts.entry(record.build.group.to_string()).or_default() += 1;
        }
        starts.values().sum::<usize>() == STARTS
    })
    .await;
    let share = starts["large"] as f64 / STARTS as f64;
    assert!((0.72..=0.78).contains(&share), "{starts:?}");
}

#[tokio::test]
async fn an_emergency_passes_ten_thousand_batch_builds() {
    let farm = Farm::builder().without("gateway").start().await;
    queue(&farm, &["g"], 10_000, Priority::Batch, &script("sleep 0.02")).await;
    let urgent = farm.create("g", Priority::Emergency, &["true"]).await;
    let record = ended(&farm, &urgent).await;
    let mut free_at = None;
    let mut queued_at = None;
    follow(&farm, SOON, |_, seen| {
        if seen.build.id == urgent.id {
            queued_at.get_or_insert(seen.at_ms);
        }
        if queued_at.is_some() && seen.state() == State::Finished {
            free_at.get_or_insert(seen.at_ms);
        }
        free_at.is_some()
    })
    .await;
    let started = record.invocation().unwrap().started_at_ms;
    let waited = started.since(free_at.unwrap());
    assert!(waited < Duration::from_secs(1), "{waited:?} after the first free workspace");
}

/// Writes a decision that stays in effect, because no governor runs.
pub(crate) async fn decide(farm: &Farm, group: &str, target: f64) {
    let governed = Governed {
        quota: esu(target),
        limit: esu(target),
        sp: esu(target),
        mv: esu(1.0),
        target: esu(target),
        ..Governed::default()
    };
    let types = BTreeMap::from([(ExecutorType::x86(), governed)]);
    let groups = BTreeMap::from([(group.parse().unwrap(), types)]);
    let record =
        GovernorRecord { tick: 1, at_ms: Millis::of_this_machine(), groups, ..GovernorRecord::default() };
    let written = farm.bus().buckets().compare_and_set(&(), &record, Sequence(0), SOON).await.unwrap();
    assert!(written);
}

#[tokio::test]
async fn three_dispatchers_of_which_one_dies_never_pass_the_target() {
    let farm = Farm::builder().workspaces(12).without("gateway").without("dispatcher").start().await;
    set_quota(&farm, "g", 5.0).await;
    decide(&farm, "g", 5.0).await;
    // Quotas are followed with a delay: these services know them from the start.
    for _ in 0..3 {
        farm.keep(farm.spawn("dispatcher").await);
    }
    let build = BuildRequest { occupancy: x86(1.5), ..script("sleep 0.02") };
    queue(&farm, &["g"], 150, Priority::Batch, &build).await;
    drop(farm.take("dispatcher"));
    queue(&farm, &["g"], 150, Priority::Batch, &build).await;
    let mut running: BTreeMap<BuildKey, Esu> = BTreeMap::new();
    let (mut most, mut finished) = (Esu::ZERO, 0);
    follow(&farm, Duration::from_secs(60), |_, record| {
        let key = record.build.key();
        assert_eq!(record.attempt.0, 1, "{key} was handed out twice");
        match record.state() {
            State::InProgress => {
                let before = running.insert(key, record.build.occupancy.get(&ExecutorType::x86()));
                assert_eq!(before, None, "handed out twice");
            }
            State::Finished => {
                running.remove(&key);
                finished += 1;
            }
            State::Enqueued => {}
        }
        most = most.max(running.values().copied().sum());
        finished == 300
    })
    .await;
    assert!(most <= esu(5.0), "{most} ESU of 5 at once");
    assert!(most >= esu(3.0), "the target was used: {most} ESU of 5");
}

#[tokio::test]
async fn a_quota_smaller_than_any_build_still_starts_one_after_the_other() {
    let farm = Farm::builder()
        .with("governor")
        .env("FOREBAY_GOVERNOR_TICK_MS", "60000")
        .without("gateway")
        .start()
        .await;
    set_quota(&farm, "g", 0.5).await;
    decided(&farm, |record| record.tick > 0).await;
    let request = BuildRequest { occupancy: x86(400.0), ..script("true") };
    queue(&farm, &["g"], 20, Priority::Batch, &request).await;
    let mut finished = 0;
    // Far less than a tick.
    follow(&farm, Duration::from_secs(20), |_, record| {
        finished += usize::from(record.state() == State::Finished);
        finished == 20
    })
    .await;
}

#[tokio::test]
async fn the_first_build_of_a_group_without_a_quota_does_not_wait_for_the_governor() {
    let farm = Farm::builder()
        .with("governor")
        .env("FOREBAY_GOVERNOR_TICK_MS", "300000")
        .workspaces(6)
        .without("gateway")
        .start()
        .await;
    set_quota(&farm, "ci", 3.0).await;
    decided(&farm, |record| record.tick > 0).await;
    // Far less than a tick, twice: its first build ended before the second arrived.
    for _ in 0..2 {
        let first = farm.submit("other", BuildRequest { occupancy: x86(1.0), ..script("true") }).await;
        ended_as(&farm, &first, Outcome::Succeeded).await;
    }
    // Lent are 0.9 of 3 ESU: of three more groups one starts, the others wait for the next decision.
    let build = BuildRequest { occupancy: x86(1.0), ..script("sleep 600") };
    let mut keys = Vec::new();
    for group in ["a", "b", "c"] {
        keys.push(farm.submit(group, build.clone()).await);
    }
    let running = async || {
        let mut running = 0;
        for key in &keys {
            running += usize::from(farm.client().get(key).await.unwrap().state == State::InProgress);
        }
        running
    };
    let starts = async {
        while running().await == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, starts).await.expect("one of the groups starts");
    // A group with a quota always gets its own; by then the others were considered.
    let own = farm.submit("ci", BuildRequest { occupancy: x86(1.0), ..script("true") }).await;
    ended_as(&farm, &own, Outcome::Succeeded).await;
    assert_eq!(running().await, 1);
    let told = farm.cli(&["quota"]).await;
    let (header, row) = told.stdout.split_once('\n').unwrap();
    let of = |name: &str| {
        let column = header.find(name).unwrap();
        row.lines().find(|line| line.trim_start().starts_with("ci")).unwrap()[column..]
            .split_whitespace()
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!((of("TYPE"), of("QUOTA"), of("QUEUED")), ("x86".into(), "3".into(), "0".into()), "{told:?}");
}

#[tokio::test]
async fn what_a_build_far_back_in_its_queue_borrowed_is_not_lent_again() {
    let farm = Farm::builder().workspaces(6).without("gateway").without("dispatcher").start().await;
    let gpu: ExecutorType = "gpu".parse().unwrap();
    let quota =
        Quota { esu: [(ExecutorType::x86(), esu(2.0)), (gpu.clone(), Esu::ZERO)].into_iter().collect() };
    farm.bus().buckets().put(&QuotaOf::Group("ci".parse().unwrap()), Some(&quota)).await.unwrap();
    // The quotas of gpu total 0: these builds stay in the queue, and fill its first page.
    let occupancy = Occupancy::of_each([ExecutorType::x86(), gpu], esu(1.0));
    let held = BuildRequest { occupancy, ..script("true") };
    queue(&farm, &["a"], 20, Priority::Interactive, &held).await;
    let build =
        |priority| BuildRequest { occupancy: x86(1.5), priority: Some(priority), ..script("sleep 600") };
    let first = farm.submit("a", build(Priority::Batch)).await;
    farm.keep(farm.spawn("dispatcher").await);
    farm.wait_until(&first, SOON, |record| record.state() == State::InProgress).await;
    // 0.3 of 1.8 ESU are left until the governor decides, and none runs.
    let second = farm.submit("b", build(Priority::Interactive)).await;
    // A group with a quota gets its own; by then the other was considered.
    let own = farm.submit("ci", BuildRequest { occupancy: x86(1.0), ..script("true") }).await;
    ended_as(&farm, &own, Outcome::Succeeded).await;
    assert_eq!(farm.client().get(&second).await.unwrap().state, State::Enqueued);
}

#[tokio::test]
async fn more_groups_than_are_read_at_once_all_have_their_turn() {
    let farm = Farm::builder().without("gateway").without("worker").start().await;
    let names: Vec<String> = (0..100).map(|number| format!("group-{number}")).collect();
    let groups: Vec<&str> = names.iter().map(String::as_str).collect();
    queue(&farm, &groups, 3, Priority::Batch, &request(&["true"])).await;
    // They waited while no workspace was idle; and there are fewer workspaces than groups throughout.
    farm.keep(farm.spawn("worker").await);
    let mut finished = 0;
    follow(&farm, Duration::from_secs(30), |_, record| {
        finished += usize::from(record.state() == State::Finished);
        finished == 300
    })
    .await;
}

#[tokio::test]
async fn a_build_that_counts_as_less_than_it_says_blocks_nobody() {
    let farm = Farm::builder().workspaces(4).without("gateway").without("dispatcher").start().await;
    set_quota(&farm, "g", 5.0).await;
    decide(&farm, "g", 5.0).await;
    let large = farm.submit("g", BuildRequest { occupancy: x86(50_000.0), ..script("sleep 60") }).await;
    farm.keep(farm.spawn("dispatcher").await);
    farm.wait_until(&large, SOON, |record| record.state() == State::InProgress).await;
    // It counts as 5 of 5; as soon as there is capacity, others start beside it.
    let (position, record) = farm.bus().buckets().get::<GovernorRecord>(&()).await.unwrap();
    let mut record = record.unwrap();
    for governed in record.groups.values_mut().flat_map(BTreeMap::values_mut) {
        governed.target = esu(7.0);
    }
    farm.bus().buckets().compare_and_set(&(), &record, position, SOON).await.unwrap();
    let small = farm.submit("g", BuildRequest { occupancy: x86(2.0), ..script("true") }).await;
    ended_as(&farm, &small, Outcome::Succeeded).await;
    // A build that claims to use nothing still uses a workspace.
    let nothing = farm.submit("g", BuildRequest { occupancy: x86(0.0), ..script("true") }).await;
    let record = ended_as(&farm, &nothing, Outcome::Succeeded).await;
    assert!(record.build.occupancy.get(&ExecutorType::x86()) > Esu::ZERO);
}

#[tokio::test]
async fn a_silent_group_lends_its_quota_and_has_it_back_soon() {
    const TICK: Duration = Duration::from_millis(500);
    let farm = Farm::builder()
        .with("governor")
        .env("FOREBAY_GOVERNOR_TICK_MS", TICK.as_millis().to_string())
        .workspaces(24)
        .without("gateway")
        .start()
        .await;
    set_quota(&farm, "lender", 0.3).await;
    set_quota(&farm, "hungry", 0.3).await;
    decided(&farm, |record| record.groups.len() == 2).await;
    let of = |record: &GovernorRecord, group: &str| {
        let types = record.groups.get(&group.parse().unwrap());
        types.and_then(|types| types.get(&ExecutorType::x86())).copied().unwrap_or_default()
    };
    let _hungry = Hunger::start(&farm, "hungry");
    let lent = decided(&farm, |record| {
        let hungry = of(record, "hungry");
        hungry.sp >= esu(0.5) && hungry.in_progress >= esu(0.4) && hungry.pv > esu(0.3)
    })
    .await;
    assert!(of(&lent, "hungry").borrowed > Esu::ZERO);
    let _lender = Hunger::start(&farm, "lender");
    let asked = tokio::time::Instant::now();
    decided(&farm, |record| {
        let (lender, hungry) = (of(record, "lender"), of(record, "hungry"));
        lender.in_progress >= esu(0.2) && hungry.borrowed == Esu::ZERO && hungry.pv <= esu(0.4)
    })
    .await;
    // Four ticks and the longest build; and the two seconds between two usage reports.
    let limit = 4 * TICK + Duration::from_secs(2) + Duration::from_secs(2);
    assert!(asked.elapsed() <= limit, "after {:?}", asked.elapsed());
}

/// Uses about a tenth of a processor for two seconds.
const TENTH: &str = "
import time
end = time.time() + 2
while time.time() < end:
    busy = time.time() + 0.01
    while time.time() < busy: pass
    time.sleep(0.09)
";

/// Keeps `count` builds of a group waiting or running until it is dropped.
struct Hunger(tokio::task::JoinHandle<()>);

impl Hunger {
    fn start(farm: &Farm, group: &'static str) -> Self {
        let client = farm.client().clone();
        let request = BuildRequest {
            occupancy: x86(0.1),
            priority: Some(Priority::Batch),
            ..request(&["python3", "-c", TENTH])
        };
        Self(tokio::spawn(async move {
            let mut unfinished = std::collections::VecDeque::new();
            loop {
                while unfinished.len() < 30 {
                    let request = BuildRequest { id: Some(model::BuildId::generate()), ..request.clone() };
                    let created = client.create(&group.parse().unwrap(), &request, None).await.unwrap();
                    unfinished.push_back(BuildKey { group: created.group, id: created.id });
                }
                let first = unfinished.front().unwrap();
                if client.get(first).await.unwrap().state == State::Finished {
                    unfinished.pop_front();
                } else {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }))
    }
}

impl Drop for Hunger {
    fn drop(&mut self) {
        self.0.abort();
    }
}
