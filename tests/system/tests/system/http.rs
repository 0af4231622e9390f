//! The tests' own HTTP client, and blobs over HTTP.

use farm::Farm;
use model::{BuildRequest, CreateReply, Outcome, TaskStatus};

use crate::{
    check::{ended, script},
    jobs,
};

/// Creates a client; it requires a TLS configuration, which is not used.
pub(crate) fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

/// The status and the text of the answer at `url`.
pub(crate) async fn get(url: &str) -> (u16, String) {
    let answer = client().get(url).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test]
async fn a_blob_in_the_store_of_another_gateway_is_found_by_digest_and_size() {
    let farm = Farm::all().await;
    let make = script("echo kept > out");
    let key = farm.submit("g", BuildRequest { outputs: vec!["out".to_owned()], ..make }).await;
    let record = ended(&farm, &key).await;
    let output = &record.result().unwrap().outputs[0];
    let data = farm.folder().join("second");
    let grpc = farm.grpc_url();
    let env = [("FOREBAY_DATA", data.to_str().unwrap()), ("FOREBAY_CAS_URL", grpc.as_str())];
    let second = farm.spawn_with_env("gateway", &env).await;
    let near = format!("{}/v1/blobs/{}", farm.http_url(), output.digest);
    let far = format!("{}/v1/blobs/{}", second.listening().unwrap().http.unwrap(), output.digest);
    let kept = (200, "kept\n".to_owned());
    assert_eq!(get(&near).await, kept);
    let (status, error) = get(&far).await;
    assert!(status == 404 && error.contains("its size is needed"), "{status} {error}");
    for url in [&near, &far] {
        assert_eq!(get(&format!("{url}?size_bytes={}", output.size_bytes)).await, kept);
        for invalid in ["size_bytes=x", "size=5"] {
            let (status, error) = get(&format!("{url}?{invalid}")).await;
            assert_eq!(status, 400, "{error}");
        }
    }
    assert_eq!(get(&format!("{near}?size_bytes=1")).await.0, 404);
}

/// Posts a body to the builds of group `g`.
async fn post(farm: &Farm, content_type: &str, body: &str) -> (u16, String) {
    let url = format!("{}/v1/builds/g", farm.http_url());
    let request = client().post(url).header("Content-Type", content_type).body(body.to_owned());
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test]
async fn a_job_is_posted_as_yaml_alone_or_in_a_request() {
    let farm = jobs::start(jobs::builder()).await;
    let job = "tasks:\n  - id: make\n    command: [sh, -c, echo made > out]\n    outputs: [out]\n";
    let within = job.replace('\n', "\n  ");
    let request = format!("# with its outputs\noutputs: [out]\njob:\n  {within}");
    for (content_type, body, outputs) in [
        ("application/yaml", job, 0),
        ("text/yaml; charset=utf-8", job, 0),
        ("Application/X-YAML", request.as_str(), 1),
    ] {
        let (status, answer) = post(&farm, content_type, body).await;
        assert_eq!(status, 201, "{content_type}: {answer}");
        let reply: CreateReply = serde_json::from_str(&answer).unwrap();
        let key = model::BuildKey { group: reply.group, id: reply.id };
        let ended = jobs::ended(&farm, &key).await;
        assert_eq!((ended.outcome(), ended.status("make")), (Outcome::Succeeded, TaskStatus::Succeeded));
        assert_eq!(ended.outputs(&farm).await.len(), outputs);
    }
    let long = format!("tasks:\n  - {{id: a, command: &a [{}]}}\n", "x, ".repeat(20_000));
    let alias: Vec<String> = (0..20).map(|at| format!("  - {{id: b{at}, command: *a}}\n")).collect();
    for (content_type, body, status, says) in [
        ("application/yaml", "tasks: [{id: a, comand: [x]}]".to_owned(), 400, "job.tasks[0]"),
        ("text/yaml", "tasks: [{id: a, command: [x], dependencies: [b]}]".to_owned(), 400, "unknown task"),
        ("text/yaml", "- a".to_owned(), 400, "request"),
        ("text/yaml", long + &alias.concat(), 413, "the request as JSON exceeds the limit"),
        ("application/json", job.to_owned(), 400, "JSON"),
    ] {
        let (found, answer) = post(&farm, content_type, &body).await;
        assert!(found == status && answer.contains(says), "{found} {answer}");
    }
}
