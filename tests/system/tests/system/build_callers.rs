//! Builds as callers of gateways with access rules: their tokens, their jobs, their Bazel.

use std::time::Duration;

use base64::Engine as _;
use callers::BuildTokens;
use farm::{Farm, Locks, SOON, WrongClock};
use model::Priority;
use reapi::execution::UpdateActionResultRequest;
use serde_json::json;
use tonic::Code;

use crate::{
    acting,
    check::ended,
    gateway_access::{capabilities, execute, group, path},
    locked::{grpc, start},
    warm::tools::{has_bazel, make_bazel_workspace},
};

#[tokio::test]
async fn builds_and_their_jobs_call_gateways_that_are_locked() {
    let locks = Locks::new();
    let farm = start(&locks, crate::jobs::builder()).await;
    let job = json!({ "tasks": [{ "id": "make", "command": ["/bin/sh", "-c", "echo made > out"], "outputs": ["out"] }] });
    let request = model::BuildRequest {
        job: Some(serde_json::from_value(job).unwrap()),
        ..model::BuildRequest::default()
    };
    let key = farm.submit("web", request).await;
    let record = ended(&farm, &key).await;
    assert_eq!(record.result().unwrap().outcome, model::Outcome::Succeeded, "{record:?}");
    // The token of a build runs actions of its group, and nothing else.
    // Its log does not show what proves the token, unless the build takes it apart.
    let command = "echo plain=$FOREBAY_TOKEN; env | base64 -w0; echo; \
                   echo token=$(echo $FOREBAY_TOKEN | sed 's/./&~/g'); echo grpc=$FOREBAY_GRPC";
    let command = vec!["/bin/sh".to_owned(), "-c".to_owned(), command.to_owned()];
    let request = model::BuildRequest {
        command,
        priority: Some(Priority::Interactive),
        timeout_seconds: Some(60),
        ..model::BuildRequest::default()
    };
    let key = farm.submit("web", request).await;
    ended(&farm, &key).await;
    let console = crate::jobs::console(&farm, &key).await;
    let shown = |name: &str| console.split(name).nth(1).unwrap().lines().next().unwrap().to_owned();
    let token = shown("token=").replace('~', "");
    let (public, proof) = token.rsplit_once('/').unwrap();
    assert_eq!((proof.len(), shown("plain=")), (64, format!("{public}/***")), "{console}");
    assert!(!console.contains(proof), "{console}");
    assert!(console.contains("***"), "{console}");
    for shift in ["", "x", "xx"] {
        let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{shift}{proof}"));
        assert!(!console.contains(&encoded[8..72]), "{console}");
    }
    assert!(console.contains("grpc=grpcs://127.0.0.1:"), "{console}");
    let stranger = grpc(&locks, &farm, None).await;
    let build = stranger.and("authorization", &format!("Bearer {token}"));
    capabilities(&build).await.unwrap();
    let status =
        build.action_cache().update_action_result(UpdateActionResultRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    let forged = stranger.and("authorization", &format!("Bearer {}", token.replace("/web/", "/other/")));
    assert_eq!(capabilities(&forged).await.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(key.group, group("web"));
    // It ends by the clock of the farm, not by that of the gateway.
    farm.replace("gateway", &WrongClock::ahead_by(7200).env()).await;
    let build = grpc(&locks, &farm, None).await.and("authorization", &format!("Bearer {token}"));
    capabilities(&build).await.unwrap();
}

#[tokio::test]
async fn an_action_is_sent_for_a_build_with_its_token_or_the_right_to_its_priority() {
    let locks = Locks::new();
    let farm = start(&locks, Farm::builder().with_actions()).await;
    let build = async |priority| {
        let command = vec!["sleep".to_owned(), "1000".to_owned()];
        let request = model::BuildRequest {
            command,
            priority: Some(priority),
            timeout_seconds: Some(60),
            ..model::BuildRequest::default()
        };
        let key = farm.submit("web", request).await;
        let runs = |record: &model::BuildRecord| record.state() == model::State::InProgress;
        let (_, record) = farm.wait_until(&key, SOON, runs).await;
        let sender = format!("{}/{}/1", record.invocation().unwrap().worker, key.id);
        (key, sender)
    };
    let (emergency, sender) = build(Priority::Emergency).await;
    let (interactive, own) = build(Priority::Interactive).await;
    let tokens = BuildTokens::of_file(&locks.path("secret")).unwrap();
    let later = std::time::SystemTime::now() + Duration::from_secs(600);
    let with_token = |key| format!("Bearer {}", tokens.issue(key, later));
    let stranger = grpc(&locks, &farm, None).await;
    let web = grpc(&locks, &farm, Some(&locks.web)).await;
    let operator = grpc(&locks, &farm, Some(&locks.operator)).await;
    let of = |key| stranger.and("authorization", &with_token(key));
    let cases = [
        (web.clone(), &sender, false),
        (of(&interactive), &sender, false),
        (web, &own, true),
        (of(&emergency), &sender, true),
        (operator.and("x-forebay-group", "web"), &sender, true),
    ];
    for (number, (calls, sender, allowed)) in cases.into_iter().enumerate() {
        let calls = calls.and("x-forebay-build", sender);
        execute(&locks, &farm, &calls, &format!("echo {number}")).await.unwrap();
        let records = acting::histories(&farm).await.into_values().map(|mut all| all.remove(0));
        let last = records.max_by_key(|record| record.execution.accepted_at_ms).unwrap().execution;
        let named = last.build.map(|build| build.to_string());
        assert_eq!(named.as_deref(), allowed.then_some(sender.as_str()), "{number}");
        let is_emergency = allowed && *sender != own;
        assert_eq!(last.band == Priority::Emergency, is_emergency, "{number}: {:?}", last.band);
    }
    for key in [emergency, interactive] {
        farm.client().cancel(&key, None).await.unwrap();
    }
}

#[tokio::test]
async fn the_bazel_of_a_build_runs_actions_on_locked_gateways() {
    if !has_bazel() {
        return;
    }
    let locks = Locks::new();
    // Debian's Bazel cannot speak TLS.
    let farm = locks.without_tls(crate::jobs::builder()).start().await;
    let source = farm.folder().join("project");
    std::fs::create_dir(&source).unwrap();
    make_bazel_workspace(&source);
    let rule = "genrule(name = \"it\", outs = [\"it.txt\"], cmd = \"echo made > $@\")\n";
    std::fs::write(source.join("BUILD"), rule).unwrap();
    let command = ["bazel", "build", "--spawn_strategy=remote", "--genrule_strategy=remote", "//:it"];
    let request = model::BuildRequest {
        context: model::Context::Directory { path: path(&source).to_owned(), ignore_files: false },
        ..crate::check::request(&command)
    };
    let key = farm.submit("web", request).await;
    let record = farm.wait_finished(&key, crate::jobs::LONG).await;
    let console = crate::jobs::console(&farm, &key).await;
    assert_eq!(record.result().unwrap().outcome, model::Outcome::Succeeded, "{console}");
    assert!(console.contains("1 remote"), "{console}");
}
