//! The HTTP API and its OpenAPI document: a validator reads the document, and a fuzzer calls everything that it describes.

use std::{fmt::Write as _, process::Stdio, time::Duration};

use farm::{Farm, Output, SOON, tool, with_tools};
use model::{BuildKey, BuildRequest, BuildView, InvocationsReply, Job, JobSource, Outcome};
use tokio::process::Command;

use crate::{
    archive::{self, until_async},
    check::{ended_as, request, script},
    http,
};

/// Test cases for each operation, of all kinds and with known ids; with `FOREBAY_LONG=1`.
const CASES: [&str; 2] = ["10", "2"];
const CASES_LONG: [&str; 2] = ["40", "5"];
/// Time limit of one run of the fuzzer.
const FUZZING: Duration = Duration::from_secs(600);
/// It would refuse what the document cannot express: cursors, parameters that exclude each other, and checks of whole
/// builds. There is no authentication.
const UNFIT: &str = "positive_data_acceptance,ignored_auth";

/// Runs the fuzzer on a farm's gateway, and returns what it printed.
async fn fuzz(farm: &Farm, config: Option<&str>, cases: &str, args: &[&str]) -> String {
    let mut command = Command::new(tool("schemathesis"));
    command.current_dir(farm.folder()).env("PATH", with_tools());
    if let Some(config) = config {
        std::fs::write(farm.folder().join("known.toml"), config).unwrap();
        command.args(["--config-file", "known.toml"]);
    }
    let document = format!("{}/v1/openapi.json", farm.http_url());
    command.args(["run", &document, "--seed", "7", "--no-color", "--generation-database", "none"]);
    command.args(["--phases", "coverage,fuzzing", "--max-examples", cases]);
    command.args(["--continue-on-failure", "--request-timeout", "20", "--exclude-checks", UNFIT]).args(args);
    command.stdin(Stdio::null()).kill_on_drop(true);
    // On two busy processors it takes more than a minute.
    let ended = tokio::time::timeout(FUZZING, command.output()).await;
    let output = ended.expect("the fuzzer ends").expect("the fuzzer starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Values of parameters that name what the farm has.
fn known(key: &BuildKey, rest: &[(&str, &str, &str)]) -> String {
    let mut text = format!("[parameters]\n\"path.group\" = \"{}\"\n", key.group);
    let of_builds =
        ["getBuild", "explainBuild", "getLog", "listInvocations", "listActions", "watchBuild", "getOutput"];
    let id = key.id.to_string();
    let builds = of_builds.into_iter().map(|operation| (operation, "path.id", id.as_str()));
    for (operation, parameter, value) in builds.chain(rest.iter().copied()) {
        writeln!(text, "[[operations]]\ninclude-operation-id = \"{operation}\"").unwrap();
        writeln!(text, "parameters = {{ \"{parameter}\" = \"{value}\", \"path.path\" = \"out\" }}").unwrap();
    }
    text
}

#[tokio::test]
async fn the_document_is_valid_and_the_api_keeps_to_it() {
    let farm = Farm::builder().with_actions().start().await;
    farm.keep(archive::start(&farm, "archive/api.db").await);
    let url = format!("{}/v1", farm.http_url());
    let get = async |path: &str| http::get(&format!("{url}/{path}")).await;

    let (_, served) = get("openapi.json").await;
    let file = farm.folder().join("openapi.json");
    std::fs::write(&file, &served).unwrap();
    let mut command = Command::new(tool("openapi-spec-validator"));
    let output = Output::of({
        command.arg(&file);
        command
    })
    .await;
    assert!(output.code == 0 && output.stdout.contains("OK"), "{output:?}");
    let printed = farm.cli(&["schema", "--openapi"]).await;
    let documents: [serde_json::Value; 2] =
        [&served, &printed.stdout].map(|text| serde_json::from_str(text).unwrap());
    assert_eq!(documents[0], documents[1]);

    let request_of_file = BuildRequest {
        outputs: vec!["out".to_owned()],
        labels: [("a".to_owned(), "b".to_owned())].into(),
        ..script("echo kept | tee out; echo err >&2")
    };
    let made = farm.submit("g", request_of_file).await;
    let output = ended_as(&farm, &made, Outcome::Succeeded).await.result().unwrap().outputs[0].clone();
    let failed = farm.submit("g", script("echo no; exit 3")).await;
    ended_as(&farm, &failed, Outcome::Failed).await;
    let job: Job = serde_json::from_str(r#"{"tasks":[{"id":"t","command":["true"]}]}"#).unwrap();
    let job = BuildRequest { command: Vec::new(), job: Some(JobSource::Inline(job)), ..request(&["true"]) };
    let job = farm.submit("g", job).await;
    ended_as(&farm, &job, Outcome::Succeeded).await;
    let running = farm.submit("g", script("sleep 600")).await;
    until_async("the build runs", SOON, async || {
        let build: BuildView = serde_json::from_str(&get(&format!("builds/{running}")).await.1).unwrap();
        build.state == model::State::InProgress
    })
    .await;
    let runs = format!("builds/{made}/invocations");
    let mut id = None;
    until_async("the archive has the run", SOON, async || {
        let reply: Option<InvocationsReply> = serde_json::from_str(&get(&runs).await.1).ok();
        id = reply.and_then(|reply| reply.invocations.first()?.id);
        id.is_some()
    })
    .await;

    let long = std::env::var_os("FOREBAY_LONG").is_some();
    let [of_all_kinds, of_known] = if long { CASES_LONG } else { CASES };
    let told = fuzz(&farm, None, of_all_kinds, &[]).await;
    assert!(told.contains("passed") && !told.contains("Failures"), "{told}");
    let (id, digest) = (id.unwrap().to_string(), output.digest.to_string());
    let rest = [("getInvocation", "path.id", id.as_str()), ("getBlob", "path.digest", digest.as_str())];
    let positive = ["--mode", "positive", "--exclude-method", "POST"];
    for key in [&made, &failed, &job] {
        let told = fuzz(&farm, Some(&known(key, &rest)), of_known, &positive).await;
        let missed = told.contains("repeatedly returned 404");
        assert_eq!(missed, key != &made, "only the first build has a file: {told}");
    }
    // Its stream of events does not end.
    let bounded = [&positive[..], &["--exclude-operation-id", "watchBuild"]].concat();
    fuzz(&farm, Some(&known(&running, &rest)), of_known, &bounded).await;
    assert_eq!(get("builds?limit=1").await.0, 200);
}
