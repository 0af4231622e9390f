//! Occupancy models on a live farm: learned from finished builds, loaded without restart, refused when they are no good.

use std::time::Duration;

use bus::Written;
use farm::{Farm, SOON};
use futures::StreamExt as _;
use model::{
    Build, BuildId, BuildKey, BuildRecord, BuildRequest, BuildResult, Esu, ExecutorType, Invocation,
    LogSummary, Millis, ModelNotice, Occupancy, Outcome, Priority, RequestLimits, Sequence, TimeLimits,
    ToolCall,
};
use store::Store;

use crate::check::request;

/// Of these 5 % are held back for testing: on fewer than 200 of a type no model is judged.
const BUILDS: u32 = 6000;

/// Tests occupy four times what builds do, each target 0.5 ESU.
fn used(command: &str, targets: usize) -> f64 {
    targets as f64 * if command == "test" { 2.0 } else { 0.5 }
}

fn call(command: &str, targets: usize, first: usize) -> ToolCall {
    ToolCall {
        command: command.into(),
        targets: (first..first + targets).map(|target| format!("//p{}:t{target}", target % 7)).collect(),
        rules: [if command == "test" { "cc_test" } else { "swift_binary" }.to_owned()].into(),
        ..ToolCall::default()
    }
}

/// A build that ended, as a worker writes it.
fn finished(number: u32) -> BuildRecord {
    let number = number as usize;
    let command = if number.is_multiple_of(3) { "test" } else { "build" };
    let targets = 1 + number * 7 % 12;
    let times = TimeLimits { timeout_seconds: 60, queue_timeout_seconds: 60, lease_ttl_seconds: 15 };
    let limits =
        RequestLimits { times, times_max: times, attempts: 1, attempts_max: 1, ..RequestLimits::default() };
    let wanted = BuildRequest {
        id: Some(BuildId::generate()),
        tool: Some(call(command, targets, number % 40)),
        ..request(&["true"])
    };
    let accepted =
        wanted.validate(&"ci".parse().unwrap(), Some(Priority::Batch), None, &limits, Millis::now()).unwrap();
    let types = [ExecutorType::x86(), "mac".parse().unwrap()];
    let build = Build { occupancy: Occupancy::of_each(types, Esu::ONE), ..accepted.build };
    let invocation = Invocation {
        worker: "w".parse().unwrap(),
        workspace: 0,
        lease_revision: 1,
        started_at_ms: Millis::now(),
        dispatched_at_us: 0,
        dispatched_at_sequence: Sequence(0),
        workspace_kind: None,
    };
    let mut usage = Occupancy::default();
    usage.add(&ExecutorType::x86(), Esu::new(used(command, targets)).unwrap());
    if command == "build" {
        usage.add(&"mac".parse().unwrap(), Esu::new(3.0).unwrap());
    }
    let result = BuildResult {
        outcome: Outcome::Succeeded,
        reason: None,
        exit_code: Some(0),
        signal: None,
        command_started_at_us: None,
        wall_seconds: 1.0,
        cpu_seconds: 1.0,
        peak_memory_bytes: 0,
        usage,
        outputs: Vec::new(),
        log: LogSummary::default(),
    };
    BuildRecord::enqueued(build).started(invocation, Sequence(1)).finished(result, Millis::now())
}

async fn record_builds(farm: &Farm) {
    let write = |number| async move {
        let written = farm.bus().transition(&finished(number), Sequence(0), SOON).await.unwrap();
        assert!(matches!(written, Written::Won(_)));
    };
    futures::stream::iter((0..BUILDS).map(write)).buffer_unordered(100).count().await;
}

async fn published(farm: &Farm, version: u64) -> ModelNotice {
    let looks = async {
        loop {
            if let Some(notice) = farm.bus().current_model().await.unwrap().filter(|n| n.version >= version) {
                return notice;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), looks).await.expect("a model is published")
}

/// Submits builds until one is estimated as `wanted` says.
async fn estimated(farm: &Farm, tool: &ToolCall, wanted: impl Fn(&Build) -> bool) -> Build {
    let looks = async {
        loop {
            let build = submit(farm, tool).await;
            if wanted(&build) {
                return build;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, looks).await.expect("builds are estimated otherwise")
}

async fn submit(farm: &Farm, tool: &ToolCall) -> Build {
    let key = farm.submit("ci", BuildRequest { tool: Some(tool.clone()), ..request(&["true"]) }).await;
    latest(farm, &key).await
}

async fn latest(farm: &Farm, key: &BuildKey) -> Build {
    farm.bus().latest(key).await.unwrap().unwrap().1.build
}

fn x86(build: &Build) -> f64 {
    build.occupancy.get(&ExecutorType::x86()).units()
}

#[tokio::test]
async fn builds_are_estimated_by_what_earlier_ones_used() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    let (test, build) = (call("test", 8, 3), call("build", 8, 3));
    assert_eq!((x86(&submit(&farm, &test).await), submit(&farm, &test).await.estimated_by), (1.0, None));
    record_builds(&farm).await;
    let _trainer = farm.spawn_with_env("trainer", &[("FOREBAY_TRAINING_SECONDS", "3600")]).await;
    let notice = published(&farm, 1).await;
    assert_eq!(notice.builds, u64::from(BUILDS));
    let kind = ExecutorType::x86();
    assert!(notice.test_error[&kind] < 0.5 * notice.default_error[&kind], "{notice:?}");
    // Without restart; and a rule that used Macs says so of the next build.
    let known = estimated(&farm, &test, |build| build.estimated_by == Some(1)).await;
    assert!((x86(&known) - used("test", 8)).abs() < 4.0, "{known:?}");
    assert_eq!(known.occupancy.0.len(), 1, "tests used no Mac: {:?}", known.occupancy);
    let known = submit(&farm, &build).await;
    assert!((x86(&known) - used("build", 8)).abs() < 2.0, "{known:?}");
    let mac = known.occupancy.get(&"mac".parse().unwrap()).units();
    assert!((mac - 3.0).abs() < 1.0, "{known:?}");
    // What the publisher says himself is not estimated.
    let said = Occupancy::of_each([ExecutorType::x86()], Esu::new(0.25).unwrap());
    let wanted = BuildRequest { tool: Some(test), occupancy: said.clone(), ..request(&["true"]) };
    assert_eq!(latest(&farm, &farm.submit("ci", wanted).await).await.occupancy, said);
}

#[tokio::test]
async fn a_model_that_is_damaged_foreign_or_worse_is_not_used() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    record_builds(&farm).await;
    let trainer = farm.spawn_with_env("trainer", &[("FOREBAY_TRAINING_SECONDS", "3600")]).await;
    let good = published(&farm, 1).await;
    drop(trainer);
    let test = call("test", 8, 3);
    estimated(&farm, &test, |build| build.estimated_by == Some(1)).await;

    let store = Store::open(&format!("file://{}", farm.folder().join("data/objects").display())).unwrap();
    let path = farm.folder().join("model");
    store.fetch(&good.digest, &path).await.unwrap();
    let content = std::fs::read(&path).unwrap();
    let mut damaged = content.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let mut foreign = content.clone();
    foreign[8] = 77;
    let bad =
        [b"no model at all".to_vec(), damaged, foreign, content[..content.len() - 1].to_vec(), worse(9)];
    for (version, content) in (2..).zip(bad) {
        let digest = store.put(content.into()).await.unwrap();
        farm.bus().publish_model(&ModelNotice { version, digest, ..good.clone() }).await.unwrap();
    }
    // One whose content is nowhere.
    let missing = ModelNotice { version: 8, digest: model::Digest::of(b"nowhere"), ..good.clone() };
    farm.bus().publish_model(&missing).await.unwrap();
    // The enqueuer has looked at them all when it uses the next good one.
    let last = good_again(10);
    let report = |content: &[u8]| occupancy::OccupancyModel::decode(content).unwrap().report().clone();
    occupancy::judge(&report(&last), Some(&report(&content))).expect("it is as good as the first");
    let last = store.put(last.into()).await.unwrap();
    farm.bus().publish_model(&ModelNotice { version: 10, digest: last, ..good }).await.unwrap();
    let known = estimated(&farm, &test, |build| {
        assert!(matches!(build.estimated_by, Some(1 | 10)), "a bad model is used: {build:?}");
        build.estimated_by == Some(10)
    })
    .await;
    assert!((x86(&known) - used("test", 8)).abs() < 4.0, "{known:?}");
}

/// A model of builds whose occupancy has nothing to do with what they ask.
fn worse(version: u64) -> Vec<u8> {
    learn(version, |number| f64::from(number.wrapping_mul(2_654_435_761) % 200) / 10.0)
}

fn good_again(version: u64) -> Vec<u8> {
    learn(version, |number| {
        let record = finished(number);
        record.result().unwrap().usage.get(&ExecutorType::x86()).units()
    })
}

fn learn(version: u64, used: impl Fn(u32) -> f64) -> Vec<u8> {
    use occupancy::{BuildFacts, Dataset, FitOptions, fit, search};
    let mut data = Dataset::new();
    for number in 0..BUILDS {
        let record = finished(number);
        let call = record.build.tool_call();
        let facts = BuildFacts {
            command: &call.command,
            flags: &call.flags,
            targets: &call.targets,
            group: "ci",
            priority: "batch",
        };
        let usage = [("x86", used(number)), ("mac", if call.command == "build" { 3.0 } else { 0.0 })];
        data.push(&facts, usage, u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    let crosses = search(&data, version, &mut || true);
    fit(&data, &crosses, &FitOptions::new(version, 1)).encode()
}

#[tokio::test]
async fn too_few_builds_teach_nothing() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    let record = finished(1);
    farm.bus().transition(&record, Sequence(0), SOON).await.unwrap();
    let trainer = farm.spawn_with_env("trainer", &[("FOREBAY_TRAINING_SECONDS", "1")]).await;
    let log = farm.folder().join("logs").join(format!("{}.log", trainer.name()));
    let told = || std::fs::read_to_string(&log).unwrap_or_default().contains("only 1 builds ended");
    crate::check::until("the trainer says so", SOON, told).await;
    assert!(farm.bus().current_model().await.unwrap().is_none());
}
