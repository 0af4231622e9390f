//! Builds that are too large, too long or run out of disk space end with their reason, once.

use std::time::Duration;

use bus::Written;
use farm::{Farm, SOON, SmallDisk};
use model::{BuildKey, BuildRequest, BuildResult, Context, Millis, Outcome, Priority, ReasonCode, State};

use crate::check::{ended, processes_of, script, until};

#[tokio::test]
async fn outputs_whose_list_fits_no_message_fail_the_build_once() {
    let farm = Farm::builder().without("gateway").start().await;
    let many = r#"n=$(printf '%0200d' 0); i=0; while [ $i -lt 3000 ]; do : > "$n$i"; i=$((i+1)); done"#;
    let key = farm.submit("g", BuildRequest { outputs: vec!["**".into()], ..script(many) }).await;
    let record = ended(&farm, &key).await;
    let result = record.result().unwrap();
    assert_eq!((result.outcome, record.attempt.0), (Outcome::Failed, 1), "{result:?}");
    let reason = result.reason.as_ref().unwrap();
    assert_eq!(reason.code, ReasonCode::OutputNotKept);
    assert!(reason.message.contains("3000 outputs"), "{}", reason.message);
}

#[tokio::test]
async fn a_run_that_was_ended_without_a_word_is_killed_at_its_next_renewal() {
    let farm = Farm::builder().without("gateway").start().await;
    let key = farm.submit("g", script("sleep 1000")).await;
    let (sequence, record) = farm.wait_until(&key, SOON, |record| record.state() == State::InProgress).await;
    until("the command runs", SOON, || !processes_of(key.id).is_empty()).await;
    // As by a canceller that dies before it revokes the lease and notifies the worker.
    let result = BuildResult::without_run(Outcome::Cancelled, ReasonCode::Cancelled, "test");
    let ended = record.finished(result, Millis::of_this_machine());
    let written = farm.bus().transition(&ended, sequence, SOON).await.unwrap();
    assert!(matches!(written, Written::Won(_)));
    until("the processes are dead", SOON, || processes_of(key.id).is_empty()).await;
}

#[tokio::test]
async fn a_refusal_that_quotes_an_endless_value_is_told_in_brief() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    let request = BuildRequest { outputs: vec![format!("/{}", "\u{1}".repeat(16_000))], ..script("true") };
    let key = farm.publish("g", Priority::Batch, &request).await;
    let record = ended(&farm, &key).await;
    let result = record.result().unwrap();
    assert_eq!(result.outcome, Outcome::Rejected);
    let message = &result.reason.as_ref().unwrap().message;
    assert!(message.chars().count() <= 1001 && message.starts_with("output"), "{} characters", message.len());
}

#[tokio::test]
async fn an_output_glob_that_cannot_be_understood_is_refused_before_anything_runs() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    let request = BuildRequest { outputs: vec!["[".into()], ..script("true") };
    let key = farm.publish("g", Priority::Batch, &request).await;
    let record = ended(&farm, &key).await;
    let result = record.result().unwrap();
    assert_eq!(result.outcome, Outcome::Rejected);
    assert!(result.reason.as_ref().unwrap().message.contains("outputs"), "{result:?}");
}

#[tokio::test]
async fn a_record_that_leaves_no_room_for_its_result_is_refused() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    // Six bytes each as JSON, one as MessagePack: the request is small enough, its record is not.
    let request = BuildRequest { command: vec!["true".into(), "\u{1}".repeat(100_000)], ..script("true") };
    let packed = bus::ToClient::encode(&request, bus::Encoding::MessagePack);
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Content-Type", "application/msgpack");
    headers.insert("Nats-Msg-Id", request.id.unwrap().to_string().as_str());
    let subject = "forebay.build.request.g.batch";
    farm.bus().jetstream().publish_with_headers(subject, headers, packed).await.unwrap().await.unwrap();
    let key = BuildKey { group: "g".parse().unwrap(), id: request.id.unwrap() };
    let record = ended(&farm, &key).await;
    assert_eq!(record.result().unwrap().outcome, Outcome::Rejected);
}

#[tokio::test]
async fn a_full_disk_is_named_as_the_reason() {
    let Some(disk) = SmallDisk::mount(4) else { return };
    let farm = Farm::builder().without("gateway").without("worker").start().await;
    let data = disk.path().display().to_string();
    let mut worker = farm.spawn_with_env("worker", &[("FOREBAY_DATA", &data)]).await;
    let key = farm.submit("g", script("dd if=/dev/zero of=big bs=1M count=20")).await;
    let record = ended(&farm, &key).await;
    let next = farm.submit("g", script("true")).await;
    let after = ended(&farm, &next).await;
    worker.term();
    worker.wait_exit(Duration::from_secs(15)).await;
    let result = record.result().unwrap();
    assert_eq!(result.reason.as_ref().unwrap().code, ReasonCode::DiskFull, "{result:?}");
    assert_eq!(after.result().unwrap().outcome, Outcome::Succeeded);
}

#[tokio::test]
async fn a_build_that_a_full_disk_kept_from_starting_is_requeued() {
    let Some(disk) = SmallDisk::mount(4) else { return };
    let farm = Farm::builder().without("gateway").without("worker").start().await;
    let source = farm.folder().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("large"), vec![1; 8 << 20]).unwrap();
    let data = disk.path().display().to_string();
    // Without a reserve, no build is ended for filling the disk.
    let env = [("FOREBAY_DATA", data.as_str()), ("FOREBAY_DISK_LEFT_PERCENT", "0")];
    let mut worker = farm.spawn_with_env("worker", &env).await;
    let context = Context::Directory { path: source.display().to_string(), ignore_files: false };
    let key = farm.submit("g", BuildRequest { context, max_attempts: Some(2), ..script("true") }).await;
    let record = ended(&farm, &key).await;
    worker.term();
    worker.wait_exit(Duration::from_secs(15)).await;
    let reason = record.result().unwrap().reason.clone().unwrap();
    assert_eq!((record.result().unwrap().outcome, record.attempt.0), (Outcome::Lost, 2), "{record:#?}");
    assert_eq!(reason.code, ReasonCode::DiskFull, "{reason:?}");
}
