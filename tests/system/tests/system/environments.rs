//! Environments that the farm stores: proposed, approved, used, and read as from a registry.

use std::{fs, path::PathBuf, process::Command};

use farm::{Builder, Farm, Locks, Output, SOON};
use model::{BuildRequest, BuildRequirements, Digest, Outcome};
use serde_json::{Value, json};

use crate::{
    check::{ended_as, script, until},
    gateway_access::answer,
    http,
    images::registry::{Registry, files, programs},
    locked,
};

const PROGRAMS: [&str; 2] = ["/bin/sh", "/bin/cat"];

fn builder() -> Builder {
    Farm::builder().with_actions().workspaces(1)
}

/// An OCI image layout whose `/etc/version` has this content.
async fn layout(farm: &Farm, version: &str) -> (PathBuf, String) {
    let registry = Registry::start().await;
    let config = json!({ "Env": ["PATH=/usr/bin:/bin"] });
    let layers = [programs(&PROGRAMS), files(&[("etc/version", version)])];
    let manifest = registry.push("tools:1", &layers, &config);
    let folder = farm.folder().join(format!("layout-{version}"));
    registry.write_layout(&manifest, &folder);
    (folder, manifest)
}

async fn env(farm: &Farm, args: &[&str]) -> Output {
    farm.cli(&[&["env"], args].concat()).await
}

/// Adds a version from a layout, which waits for approval.
async fn add(farm: &Farm, name: &str, version: &str) -> String {
    let (folder, manifest) = layout(farm, version).await;
    let added =
        env(farm, &["add", name, "--grpc", &farm.grpc_url(), "--layout", folder.to_str().unwrap()]).await;
    assert_eq!(added.code, 0, "{added:?}");
    assert!(added.stderr.contains("waits for approval"), "{added:?}");
    manifest
}

async fn approve(farm: &Farm, name: &str) {
    let approved = env(farm, &["approve", name, "--follow", "--by", "Ada"]).await;
    assert_eq!(approved.code, 0, "{approved:?}");
    assert!(approved.stderr.contains("is ready: docker://forebay.internal/"), "{approved:?}");
}

/// The output of an action, or why it was not run.
async fn exec(farm: &Farm, platform: &str) -> Output {
    let (grpc, platform) = (farm.grpc_url(), format!("env={platform}"));
    farm.cli(&["exec", "--grpc", &grpc, "--platform", &platform, "--", "/bin/cat", "/etc/version"]).await
}

async fn said(farm: &Farm, platform: &str) -> String {
    let ended = exec(farm, platform).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.stdout
}

#[tokio::test]
async fn a_version_is_used_once_it_is_approved_and_each_keeps_its_content() {
    let farm = builder().start().await;
    let first = add(&farm, "sh", "one").await;
    let refused = exec(&farm, "sh").await;
    assert!(refused.code != 0 && refused.stderr.contains("1 (proposed)"), "{refused:?}");
    approve(&farm, "sh").await;
    assert_eq!(said(&farm, "sh").await, "one");
    let second = add(&farm, "sh", "two").await;
    assert_eq!(said(&farm, "sh").await, "one", "the second one waits");
    approve(&farm, "sh@2").await;
    assert_eq!((said(&farm, "sh").await, said(&farm, "sh@1").await), ("two".into(), "one".into()));
    let again = env(&farm, &["approve", "sh@2"]).await;
    assert!(again.code == 2 && again.stderr.contains("is ready"), "{again:?}");
    let listed: Value = serde_json::from_str(&env(&farm, &["list", "sh", "--json"]).await.stdout).unwrap();
    let image = |at: usize| listed["versions"][at]["image"].as_str().unwrap().to_owned();
    assert!(image(0).ends_with(&first) && image(1).ends_with(&second), "{listed}");
    assert_eq!(listed["versions"][1]["approved"]["by"], "Ada");
    // Back to the first one.
    assert_eq!(env(&farm, &["rm", "sh@2"]).await.code, 0);
    assert_eq!(said(&farm, "sh").await, "one");
    let unknown = exec(&farm, "sh@2").await;
    assert!(unknown.code != 0 && unknown.stderr.contains("has no version 2"), "{unknown:?}");
    assert_eq!(env(&farm, &["rm", "sh"]).await.code, 0);
    let gone = exec(&farm, "sh").await;
    assert!(gone.code != 0 && gone.stderr.contains("forebay env add"), "{gone:?}");
}

#[tokio::test]
async fn a_build_and_a_service_run_in_an_environment_that_the_farm_stores() {
    let farm = builder().start().await;
    add(&farm, "g/sh", "own").await;
    approve(&farm, "g/sh").await;
    let requiring = || BuildRequest {
        requirements: BuildRequirements([("env".to_owned(), "sh".to_owned())].into()),
        ..script("cat /etc/version")
    };
    let key = farm.submit("g", requiring()).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    assert_eq!(farm.cli(&["logs", &key.to_string()]).await.stdout, "own");
    let refused = farm.client().create(&"other".parse().unwrap(), &requiring(), None).await;
    assert!(refused.unwrap_err().to_string().contains("there is no environment of this name"));
}

#[tokio::test]
async fn what_is_approved_while_no_service_makes_it_is_made_later_and_only_once() {
    let farm = builder().start().await;
    add(&farm, "sh", "one").await;
    let mut cas = farm.take("cas");
    cas.kill9();
    cas.wait_exit(SOON).await;
    let (first, second) = tokio::join!(env(&farm, &["approve", "sh@1"]), env(&farm, &["approve", "sh@1"]));
    let mut codes = [first.code, second.code];
    codes.sort_unstable();
    assert_eq!(codes, [0, 2], "one of them was late: {first:?} {second:?}");
    let refused = exec(&farm, "sh").await;
    assert!(refused.code != 0 && refused.stderr.contains("1 (checking)"), "{refused:?}");
    farm.keep(farm.spawn("cas").await);
    farm.keep(farm.spawn("cas").await);
    let is_ready = async || env(&farm, &["list", "sh"]).await.stdout.contains("ready, current");
    let ready = tokio::time::timeout(SOON, async { while !is_ready().await {} });
    ready.await.expect("the version is made");
    assert_eq!(said(&farm, "sh").await, "one");
}

#[tokio::test]
async fn what_cannot_be_made_fails_with_the_reason() {
    let farm = builder().start().await;
    add(&farm, "sh", "one").await;
    approve(&farm, "sh").await;
    let registry = Registry::start().await;
    let manifest = registry.push("bad:1", &[files(&[("../outside", "bad")])], &json!({}));
    let folder = farm.folder().join("layout-bad");
    registry.write_layout(&manifest, &folder);
    let (grpc, path) = (farm.grpc_url(), folder.to_str().unwrap());
    let bad = env(&farm, &["add", "sh", "--grpc", &grpc, "--layout", path, "--approve", "--follow"]).await;
    assert!(bad.code == 1 && bad.stderr.contains("leaves the image"), "{bad:?}");
    assert_eq!(said(&farm, "sh").await, "one", "it replaces none that can be used");
    let recipe = farm.folder().join("recipe.yaml");
    fs::write(&recipe, "debian: bookworm\npackages: [hello]\n").unwrap();
    let args = ["add", "hello", "--file", recipe.to_str().unwrap(), "--approve", "--follow"];
    let failed = env(&farm, &args).await;
    assert!(failed.code == 1 && failed.stderr.contains("build_environments"), "{failed:?}");
    fs::write(&recipe, "debian: bookworm\npackages: [--force]\n").unwrap();
    let bad = env(&farm, &args).await;
    assert!(bad.code == 2 && bad.stderr.contains("invalid package"), "{bad:?}");
    // An image whose parts the store does not have.
    let manifest = Digest::of(b"nothing").of_size(7);
    let name = "gone".parse().unwrap();
    let definition = model::EnvironmentDefinition::Stored(manifest);
    farm.client().propose_environment(&name, definition, None).await.unwrap();
    let failed = env(&farm, &["approve", "gone", "--follow"]).await;
    assert!(failed.code == 1 && failed.stderr.contains("does not have its part"), "{failed:?}");
    let unknown = env(&farm, &["approve", "nothing"]).await;
    assert!(unknown.code == 2 && unknown.stderr.contains("there is no environment nothing"), "{unknown:?}");
}

#[tokio::test]
async fn a_registry_client_reads_ready_versions_and_nothing_else_of_the_store() {
    let farm = builder().start().await;
    let manifest = add(&farm, "g/sh", "one").await;
    let url = |path: &str| format!("{}/v2/{path}", farm.http_url());
    assert_eq!(http::get(&url("")).await.0, 200);
    let (status, unapproved) = http::get(&url("g/sh/manifests/latest")).await;
    assert!(status == 404 && unapproved.contains("MANIFEST_UNKNOWN"), "{status} {unapproved}");
    approve(&farm, "g/sh").await;
    let (_, tags) = http::get(&url("g/sh/tags/list")).await;
    assert_eq!(serde_json::from_str::<Value>(&tags).unwrap()["tags"], json!(["1", "latest"]));
    let answer = http::client().get(url("g/sh/manifests/latest")).send().await.unwrap();
    assert_eq!(answer.headers()["docker-content-digest"].to_str().unwrap(), manifest);
    let document: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    let layer = document["layers"][1]["digest"].as_str().unwrap().to_owned();
    let content = http::client().get(url(&format!("g/sh/blobs/{layer}"))).send().await.unwrap();
    assert_eq!(Digest::of(&content.bytes().await.unwrap()).to_string(), layer);
    let head = http::client().head(url(&format!("g/sh/blobs/{layer}"))).send().await.unwrap();
    assert!(head.status().is_success() && head.headers().contains_key("content-length"), "{head:?}");
    // Another blob of the same store.
    let secret = farm.folder().join("secret");
    fs::write(&secret, "secret").unwrap();
    let put = farm.cli(&["cas", "--grpc", &farm.grpc_url(), "put", secret.to_str().unwrap()]).await;
    assert_eq!(put.code, 0, "{put:?}");
    let other = Digest::of(b"secret");
    for path in [
        format!("g/sh/blobs/{other}"),
        format!("g/sh/manifests/{other}"),
        format!("sh/blobs/{layer}"),
        "g/sh/manifests/2".to_owned(),
    ] {
        assert_eq!(http::get(&url(&path)).await.0, 404, "{path}");
    }
    let pushed = http::client().put(url("g/sh/manifests/x")).body("{}").send().await.unwrap();
    assert_eq!(pushed.status(), 405);
}

#[tokio::test]
async fn the_blobs_of_an_environment_are_kept_for_as_long_as_it_exists() {
    let farm = builder().env("FOREBAY_CAS_KEEP_MIN_SECONDS", "1").start().await;
    add(&farm, "sh", "one").await;
    approve(&farm, "sh").await;
    let kept = || {
        let found =
            Command::new("find").arg(farm.data().join("cas/kept")).args(["-type", "f"]).output().unwrap();
        String::from_utf8(found.stdout).unwrap().lines().count()
    };
    until("manifest, configuration and two layers are kept", SOON, || kept() == 4).await;
}

#[tokio::test]
async fn environments_of_a_group_are_seen_and_proposed_by_its_callers_only() {
    let locks = Locks::new();
    let farm = locked::start(&locks, Farm::builder().only(&["gateway"])).await;
    let (client, url) = (locked::http(&locks), format!("{}/v1/environments", farm.http_url()));
    let propose = async |key: &callers::ApiKey, name: &str, by: &str| {
        let image = "docker://registry.example.com/secret/tool:1";
        let body = json!({ "name": name, "by": by, "definition": { "image": image } });
        answer(client.post(&url).json(&body), key).await
    };
    let (status, made) = propose(&locks.web, "web/tool", "key:operator").await;
    assert_eq!(status, 200, "{made}");
    // The farm knows who proposes.
    assert_eq!(made["versions"][0]["proposed"]["by"], "key:web", "{made}");
    for name in ["web/tool", "web/more", "tool"] {
        assert_eq!(propose(&locks.other, name, "key:web").await.0, 403, "{name}");
    }
    assert_eq!(propose(&locks.operator, "tool", "me").await.0, 200);
    for (key, seen) in [(&locks.web, true), (&locks.other, false), (&locks.operator, true)] {
        let (status, all) = answer(client.get(&url), key).await;
        assert_eq!((status, all.to_string().contains("web/tool")), (200, seen), "{all}");
        let catalog = format!("{}/v2/_catalog", farm.http_url());
        let (status, names) = answer(client.get(catalog), key).await;
        assert_eq!((status, names.to_string().contains("web/tool")), (200, seen), "{names}");
    }
    let tags = format!("{}/v2/web/tool/tags/list", farm.http_url());
    assert_eq!(answer(client.get(&tags), &locks.web).await.0, 200);
    assert_eq!(answer(client.get(&tags), &locks.other).await.0, 404);
}
