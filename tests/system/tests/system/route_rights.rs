//! Every route of the HTTP API, tried by a caller of another group.

use std::collections::BTreeSet;

use farm::{Farm, Locks, SOON};
use model::{BuildRequest, State};
use serde_json::Value;

use crate::{
    check::script,
    locked::{http, start},
};

/// Routes that answer a caller of any group, because they show nothing of one, or only what the caller may see.
const FOR_ALL: [&str; 5] = [
    "GET /healthz",
    "GET /v1/openapi.json",
    // Of the own zone.
    "GET /v1/blobs/{digest}",
    // Checked by name, after the body is read.
    "GET /v1/environments",
    "POST /v1/environments",
];

/// Fills the parameters of a path with what belongs to the other group.
fn filled(path: &str, id: &str, operation: &Value) -> String {
    let mut filled = path.replace("{group}", "web").replace("{id}", id);
    for (name, value) in [("{digest}", "00/0"), ("{path}", "f"), ("{attempt}", "1"), ("{task}", "t")] {
        filled = filled.replace(name, value);
    }
    let takes_group = operation["parameters"].as_array().into_iter().flatten();
    let takes_group = takes_group.filter(|it| it["in"] == "query").any(|it| it["name"] == "group");
    if takes_group { format!("{filled}?group=web") } else { filled }
}

#[tokio::test]
async fn every_route_refuses_a_caller_of_another_group() {
    let locks = Locks::new();
    let farm = start(&locks, Farm::builder().with("archive")).await;
    let request = BuildRequest { id: None, ..script("sleep 1000") };
    let build = farm.submit("web", request).await;
    farm.wait_until(&build, SOON, |record| record.state() == State::InProgress).await;
    let client = http(&locks);
    let document = client.get(format!("{}/v1/openapi.json", farm.http_url())).send().await.unwrap();
    let document: Value = serde_json::from_str(&document.text().await.unwrap()).unwrap();
    let (mut tried, mut open) = (0, BTreeSet::new());
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let Ok(verb) = method.to_uppercase().parse::<reqwest::Method>() else { continue };
            let url = format!("{}{}", farm.http_url(), filled(path, &build.id.to_string(), operation));
            let sent = client.request(verb.clone(), url).bearer_auth(locks.other.reveal());
            let answer = sent.header("Content-Type", "application/json").body("{}").send().await.unwrap();
            tried += 1;
            if answer.status().as_u16() != 403 {
                open.insert(format!("{verb} {path}"));
            }
        }
    }
    assert!(tried > 20, "{tried}");
    let known: BTreeSet<String> = FOR_ALL.into_iter().map(str::to_owned).collect();
    assert_eq!(open, known);
    farm.client().cancel(&build, None).await.unwrap();
}
