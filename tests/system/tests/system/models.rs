//! Occupancy models on a live farm: trained on finished builds, loaded without restart, refused
//! when they are inaccurate.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use bus::Written;
use farm::{Farm, SOON, ServiceProcess};
use futures::StreamExt as _;
use model::{
    Build, BuildId, BuildKey, BuildRecord, BuildRequest, BuildResult, Esu, ExecutorType, Invocation,
    InvocationId, LogSummary, Millis, ModelNotice, Occupancy, Outcome, Priority, RequestLimits, Sequence,
    TimeLimits, ToolCall,
};

use crate::check::request;

/// 5 % of these are held out for testing: a model needs at least 200 test builds per type to be evaluated.
const BUILDS: u32 = 6000;

/// Tests occupy four times as much as builds, 0.5 ESU for each target.
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

/// Creates a finished build as a worker writes it.
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
    let accepted = wanted
        .validate(&"ci".parse().unwrap(), Some(Priority::Batch), None, &limits, Millis::of_this_machine())
        .unwrap();
    let types = [ExecutorType::x86(), "mac".parse().unwrap()];
    let build = Build { occupancy: Occupancy::of_each(types, Esu::ONE), ..accepted.build };
    let invocation = Invocation {
        id: Some(InvocationId::generate()),
        worker: "w".parse().unwrap(),
        workspace: 0,
        lease_revision: 1,
        started_at_ms: Millis::of_this_machine(),
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
        on_executors: Occupancy::default(),
        preparation_seconds: None,
        outputs: Vec::new(),
        outputs_missing: Vec::new(),
        outputs_not_kept: Vec::new(),
        outputs_not_kept_count: 0,
        job: None,
        tool: None,
        log: LogSummary::default(),
    };
    let started = BuildRecord::enqueued(build).started(invocation, Sequence(1));
    let mut finished = started.finished(result, Millis::of_this_machine());
    // It is the only message about the build.
    finished.queue.first_sequence = None;
    finished
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
            let (_, notice) = farm.bus().buckets().get::<ModelNotice>(&()).await.unwrap();
            if let Some(notice) = notice.filter(|notice| notice.version >= version) {
                return notice;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), looks).await.expect("a model is published")
}

/// Publishes a model in place of the current one.
async fn publish(farm: &Farm, notice: &ModelNotice) {
    let (position, _) = farm.bus().buckets().get::<ModelNotice>(&()).await.unwrap();
    assert!(farm.bus().buckets().compare_and_set(&(), notice, position, SOON).await.unwrap());
}

/// Starts a trainer that trains once; returns it and its log.
async fn trainer(farm: &Farm) -> (ServiceProcess, PathBuf) {
    let env = [("FOREBAY_TRAINING_SECONDS", "3600"), ("FOREBAY_LOG", "trainer=debug")];
    let trainer = farm.spawn_with_env("trainer", &env).await;
    let log = farm.folder().join("logs").join(format!("{}.log", trainer.name()));
    (trainer, log)
}

/// Waits until this line is in the log.
async fn told(log: &Path, line: &str) {
    let told = || std::fs::read_to_string(log).unwrap_or_default().contains(line);
    crate::check::until(&format!("{line:?} in the log"), Duration::from_secs(60), told).await;
}

/// Submits builds until the estimate of one satisfies the condition.
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
    tokio::time::timeout(SOON, looks).await.expect("the estimates of builds change")
}

async fn submit(farm: &Farm, tool: &ToolCall) -> Build {
    let key = farm.submit("ci", BuildRequest { tool: Some(tool.clone()), ..request(&["true"]) }).await;
    latest(farm, &key).await
}

async fn latest(farm: &Farm, key: &BuildKey) -> Build {
    farm.bus().records().latest(key).await.unwrap().unwrap().1.build
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
    // Loaded without restart; a rule about Macs applies to the next build.
    let known = estimated(&farm, &test, |build| build.estimated_by == Some(1)).await;
    assert!((x86(&known) - used("test", 8)).abs() < 4.0, "{known:?}");
    assert_eq!(known.occupancy.0.len(), 1, "the estimate has no Mac: {:?}", known.occupancy);
    let known = submit(&farm, &build).await;
    assert!((x86(&known) - used("build", 8)).abs() < 2.0, "{known:?}");
    let mac = known.occupancy.get(&"mac".parse().unwrap()).units();
    assert!((mac - 3.0).abs() < 1.0, "{known:?}");
    // An occupancy that the publisher sets is not estimated.
    let said = Occupancy::of_each([ExecutorType::x86()], Esu::new(0.25).unwrap());
    let wanted = BuildRequest { tool: Some(test), occupancy: said.clone(), ..request(&["true"]) };
    assert_eq!(latest(&farm, &farm.submit("ci", wanted).await).await.occupancy, said);
}

#[tokio::test]
async fn expired_builds_are_learned_from_the_archive() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    record_builds(&farm).await;
    let archive = crate::archive::start(&farm, "archive/archive.db").await;
    let store = archive_store::Store::new("archive/archive.db", &farm.data()).unwrap();
    crate::archive::caught_up(&farm, &store).await;
    crate::archive::purge(&farm).await;
    let (_trainer, _) = trainer(&farm).await;
    let notice = published(&farm, 1).await;
    assert_eq!(notice.builds, u64::from(BUILDS));
    drop(archive);
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

    let content = crate::jobs::bytes(&farm, &good.digest).await;
    let good = ModelNotice { size_bytes: None, ..good };
    let mut damaged = content.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let mut foreign = content.clone();
    foreign[8] = 77;
    let bad =
        [b"no model at all".to_vec(), damaged, foreign, content[..content.len() - 1].to_vec(), worse(9)];
    for (version, content) in (2..).zip(bad) {
        let digest = crate::jobs::stored(&farm, content).await;
        publish(&farm, &ModelNotice { version, digest, ..good.clone() }).await;
    }
    // A model whose content does not exist.
    let missing = ModelNotice { version: 8, digest: model::Digest::of(b"nowhere"), ..good.clone() };
    publish(&farm, &missing).await;
    // The enqueuer has seen all of them when it uses the next good one.
    let last = good_again(10);
    let report = |content: &[u8]| occupancy::OccupancyModel::decode(content).unwrap().report().clone();
    occupancy::judge(&report(&last), Some(&report(&content))).expect("it is as good as the first");
    let last = crate::jobs::stored(&farm, last).await;
    publish(&farm, &ModelNotice { version: 10, digest: last, ..good }).await;
    let known = estimated(&farm, &test, |build| {
        assert!(matches!(build.estimated_by, Some(1 | 10)), "a bad model is used: {build:?}");
        build.estimated_by == Some(10)
    })
    .await;
    assert!((x86(&known) - used("test", 8)).abs() < 4.0, "{known:?}");
}

/// Creates a model whose builds' occupancy is independent of their requests.
fn worse(version: u64) -> Vec<u8> {
    learn(version, "x86", |number| f64::from(number.wrapping_mul(2_654_435_761) % 200) / 10.0)
}

fn good_again(version: u64) -> Vec<u8> {
    learn(version, "x86", x86_of)
}

fn x86_of(number: u32) -> f64 {
    finished(number).result().unwrap().usage.get(&ExecutorType::x86()).units()
}

fn learn(version: u64, kind: &str, used: impl Fn(u32) -> f64) -> Vec<u8> {
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
        let usage = [(kind, used(number)), ("mac", if call.command == "build" { 3.0 } else { 0.0 })];
        data.push(&facts, usage, u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    let crosses = search(&data, version, &mut || true);
    fit(&data, &crosses, &FitOptions::new(version, 1)).encode()
}

#[tokio::test]
async fn a_model_that_enqueuers_would_refuse_is_not_published() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    record_builds(&farm).await;
    // The model in use is accurate for a type that no recent build has used.
    let content = learn(4, "gpu", x86_of);
    let in_use = ModelNotice {
        version: 4,
        digest: crate::jobs::stored(&farm, content).await,
        size_bytes: None,
        trained_at_ms: Millis(1),
        builds: u64::from(BUILDS),
        test_error: [].into(),
        default_error: [].into(),
        types_by_rule: [].into(),
    };
    publish(&farm, &in_use).await;
    let before = farm.bus().buckets().get::<ModelNotice>(&()).await.unwrap();
    let (trainer_of_worse, log) = trainer(&farm).await;
    told(&log, "does not cover gpu").await;
    // No further training happens before it is due.
    told(&log, "no training is due yet").await;
    assert_eq!(farm.bus().buckets().get::<ModelNotice>(&()).await.unwrap(), before);
    drop(trainer_of_worse);
    // A model with missing content does not block a new one.
    publish(&farm, &ModelNotice { digest: model::Digest::of(b"nowhere"), ..in_use }).await;
    let (_trainer, log) = trainer(&farm).await;
    told(&log, "cannot read the model in use").await;
    assert_eq!(published(&farm, 5).await.version, 5);
}

#[tokio::test]
async fn two_trainers_publish_one_model() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    record_builds(&farm).await;
    let mut changes = farm.bus().buckets().changes::<ModelNotice>().await.unwrap();
    let ((_one, one_log), (_other, other_log)) = tokio::join!(trainer(&farm), trainer(&farm));
    // Either may be first; the other saw its model before training, or when it tried to publish.
    for log in [&one_log, &other_log] {
        told(log, "no training is due yet").await;
    }
    let (position, notice) = farm.bus().buckets().get::<ModelNotice>(&()).await.unwrap();
    let notice = notice.unwrap();
    assert_eq!(changes.next().await.unwrap(), notice);
    // The next published model follows it, and no other model of version 1.
    let next = ModelNotice { version: 2, digest: model::Digest::of(b"nowhere"), ..notice };
    assert!(
        !farm.bus().buckets().compare_and_set(&(), &next, Sequence(0), SOON).await.unwrap(),
        "there is one already"
    );
    assert!(farm.bus().buckets().compare_and_set(&(), &next, position, SOON).await.unwrap());
    assert!(
        !farm.bus().buckets().compare_and_set(&(), &next, position, SOON).await.unwrap(),
        "it was replaced"
    );
    assert_eq!(changes.next().await.unwrap(), next);
}

#[tokio::test]
async fn a_notice_that_cannot_be_read_stops_nobody() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    record_builds(&farm).await;
    let key = "$KV.FOREBAY_MODELS.current";
    farm.bus().jetstream().publish(key, "{\"version\":\"one\"}".into()).await.unwrap().await.unwrap();
    // A new enqueuer that finds the model at its start.
    farm.replace("enqueuer", &[]).await;
    let test = call("test", 8, 3);
    assert_eq!(submit(&farm, &test).await.estimated_by, None);
    let (position, notice) = farm.bus().buckets().get::<ModelNotice>(&()).await.unwrap();
    assert!(position > Sequence(0) && notice.is_none());
    let (_trainer, _) = trainer(&farm).await;
    assert_eq!(published(&farm, 1).await.version, 1);
    estimated(&farm, &test, |build| build.estimated_by == Some(1)).await;
}

#[tokio::test]
async fn too_few_builds_teach_nothing() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    let record = finished(1);
    farm.bus().transition(&record, Sequence(0), SOON).await.unwrap();
    let (_trainer, log) = trainer(&farm).await;
    told(&log, "only 1 builds ended").await;
    assert_eq!(farm.bus().buckets().get::<ModelNotice>(&()).await.unwrap(), (Sequence(0), None));
}
