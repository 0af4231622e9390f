//! Clients in another language: any NATS client is a first-class client.

use std::process::Stdio;

use farm::{Farm, Output, repository, tool, with_tools};
use tokio::process::Command;

use crate::check::script;

/// Runs Python with `nats-py`, `msgpack` and `jsonschema`.
pub(crate) fn python(script: &str) -> Command {
    let mut command = Command::new(tool("python"));
    command.arg(repository().join(script)).env("PATH", with_tools()).stdin(Stdio::null());
    command
}

#[tokio::test]
async fn the_api_is_a_nats_service_in_json_and_message_pack() {
    let farm = Farm::builder().without("gateway").start().await;
    let mut command = python("tests/system/python/service.py");
    command.arg(farm.servers.nats_url());
    let output = Output::of(command).await;
    assert_eq!(output.code, 0, "{}", output.stderr);
}

#[tokio::test]
async fn the_example_runs_a_build_and_shows_its_output() {
    let farm = Farm::builder().without("gateway").start().await;
    let run = async |command: &[&str]| {
        let mut example = python("examples/python/build.py");
        example.args(["--nats", &farm.servers.nats_url(), "--group", "py", "--priority", "batch", "--"]);
        Output::of({
            example.args(command);
            example
        })
        .await
    };
    let output = run(&["sh", "-c", "echo out; echo err >&2"]).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "out\n"), "{output:?}");
    assert!(output.stderr.starts_with("err\n") && output.stderr.contains("succeeded"), "{output:?}");
    let output = run(&["sh", "-c", "exit 4"]).await;
    assert!(output.code == 1 && output.stderr.contains("failed"), "{output:?}");
}

#[tokio::test]
async fn the_python_program_of_the_documents_runs() {
    let farm = Farm::builder().without("gateway").start().await;
    let document = std::fs::read_to_string(repository().join("docs/clients.md")).unwrap();
    let (_, rest) = document.split_once("```python\n").unwrap();
    let (program, _) = rest.split_once("```").unwrap();
    let program = program.replace("nats://127.0.0.1:4222", &farm.servers.nats_url());
    let file = farm.folder().join("client.py");
    std::fs::write(&file, program).unwrap();
    let mut command = Command::new(tool("python"));
    command.arg(&file);
    let output = Output::of(command).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stdout.contains("Linux") && output.stdout.ends_with("succeeded\n"), "{output:?}");
}

#[tokio::test]
async fn the_http_calls_of_the_documents_work() {
    let farm = Farm::all().await;
    let url = format!("{}/v1/builds/demo", farm.http_url());
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-d", r#"{"command":["uname","-a"]}"#, &url]);
    let output = Output::of(curl).await;
    let reply: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    let mut curl = Command::new("curl");
    curl.args(["-sSN", &format!("{url}/{}/events", reply["id"].as_str().unwrap())]);
    let output = Output::of(curl).await;
    assert!(output.stdout.contains("Linux") && output.stdout.contains("INVOCATION_FINISHED"), "{output:?}");
    // The gateway's other calls answer too.
    let request = script("true");
    let key = farm.submit("demo", request).await;
    farm.wait_finished(&key, farm::SOON).await;
    let http = crate::http::client();
    for path in ["groups", "workers", "builds", "builds/demo?state=FINISHED&limit=1"] {
        let got = http.get(format!("{}/v1/{path}", farm.http_url())).send().await.unwrap();
        assert!(got.status().is_success(), "{path}: {}", got.status());
    }
}
