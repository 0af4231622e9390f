//! Builds in container images.

use std::fs;

use farm::{Builder, Farm};
use model::{BuildRequest, BuildRequirements, Outcome, ReasonCode};
use serde_json::json;

use crate::{
    check::{ended_as, script},
    images::registry::{Registry, files, programs},
};

const PROGRAMS: [&str; 5] = ["/bin/sh", "/bin/cat", "/bin/ls", "/usr/bin/touch", "/usr/bin/id"];

fn builder(registry: &Registry) -> Builder {
    Farm::builder().without("gateway").workspaces(1).env("FOREBAY_REGISTRIES", registry.setting())
}

fn push(registry: &Registry, name: &str, version: &str) -> String {
    let config = json!({ "Env": ["PATH=/usr/bin:/bin:/special", "FROM_IMAGE=yes", "LANG=xx"] });
    registry.push(name, &[programs(&PROGRAMS), files(&[("etc/version", version)])], &config)
}

/// A build that requires this value of a property.
fn requiring(name: &str, value: &str, text: &str) -> BuildRequest {
    let requirements = BuildRequirements([(name.to_owned(), value.to_owned())].into());
    BuildRequest { requirements, ..script(text) }
}

async fn said(farm: &Farm, request: BuildRequest) -> String {
    let key = farm.submit("g", request).await;
    ended_as(farm, &key, Outcome::Succeeded).await;
    let log = farm.cli(&["logs", &key.to_string()]).await;
    assert_eq!(log.code, 0, "{log:?}");
    log.stdout
}

#[tokio::test]
async fn a_build_sees_the_files_of_its_image_and_writes_only_to_its_workspace() {
    let registry = Registry::start().await;
    let digest = push(&registry, "tools:1", "one");
    let farm = builder(&registry).start().await;
    let text = "cat /etc/version; echo; echo $FROM_IMAGE $LANG; echo ${PATH##*:}; [ -e /etc/passwd ] || echo no-passwd; \
                touch /new /usr/new 2>/dev/null || echo read-only; touch /tmp/x $HOME/x file && echo written; \
                ls /proc/1 >/dev/null && echo proc";
    let mut request = requiring("container-image", &registry.image("tools:1"), text);
    request.outputs = vec!["file".to_owned()];
    let key = farm.submit("g", request).await;
    let record = ended_as(&farm, &key, Outcome::Succeeded).await;
    assert_eq!(record.result().unwrap().outputs.len(), 1);
    let log = farm.cli(&["logs", &key.to_string()]).await.stdout;
    let (first, rest) = log.split_once('\n').unwrap();
    let image = registry.image(&format!("tools@{digest}"));
    assert!(first.ends_with(&format!("runs in the image {image}")), "{first}");
    assert_eq!(rest, "one\nyes C.UTF-8\n/special\nno-passwd\nread-only\nwritten\nproc\n");
    // The next build of the same worker has none.
    assert!(said(&farm, script("[ -e /etc/passwd ] && echo machine")).await.ends_with("machine\n"));
}

#[tokio::test]
async fn a_workspace_stays_warm_in_the_same_content_only() {
    let registry = Registry::start().await;
    let first = push(&registry, "tools:1", "one");
    let farm = builder(&registry).env("FOREBAY_IMAGE_TAG_SECONDS", "0").start().await;
    let text = "ls kept 2>/dev/null; touch kept; cat /etc/version";
    let by_tag = || requiring("container-image", &registry.image("tools:1"), text);
    let by_digest = || requiring("container-image", &registry.image(&format!("tools@{first}")), text);
    let kept = |said: &str| said.lines().any(|line| line == "kept");
    assert!(!kept(&said(&farm, by_digest()).await));
    assert!(kept(&said(&farm, by_digest()).await), "the content is the same");
    for version in ["one", "two"] {
        push(&registry, "tools:1", version);
        let said = said(&farm, by_tag()).await;
        assert!(!kept(&said) && said.ends_with(version), "{said}");
    }
}

#[tokio::test]
async fn an_environment_names_the_image_of_a_build() {
    let registry = Registry::start().await;
    push(&registry, "tools:1", "all");
    push(&registry, "tools:own", "own");
    let environments = json!({"sh": registry.image("tools:1"), "g/sh": registry.image("tools:own")});
    let farm = builder(&registry).env("FOREBAY_ENVIRONMENTS", environments.to_string()).start().await;
    assert!(said(&farm, requiring("env", "sh", "cat /etc/version")).await.ends_with("own"));
}

#[tokio::test]
async fn a_build_without_a_usable_image_fails_with_the_reason_and_holds_up_no_other() {
    let registry = Registry::start().await;
    push(&registry, "tools:1", "one");
    registry.push("links:1", &[files(&[("../outside", "bad")])], &json!({}));
    let farm = builder(&registry).start().await;
    for (name, expected) in [("missing:1", "does not have manifests/1"), ("links:1", "leaves the image")] {
        let key = farm.submit("g", requiring("container-image", &registry.image(name), "true")).await;
        let record = ended_as(&farm, &key, Outcome::Failed).await;
        let reason = record.result().unwrap().reason.clone().unwrap();
        assert_eq!(reason.code, ReasonCode::ContextUnavailable);
        assert!(reason.message.contains(expected) && reason.message.contains("cannot be used"), "{reason:?}");
    }
    let image = registry.image("tools:1");
    assert!(said(&farm, requiring("container-image", &image, "cat /etc/version")).await.ends_with("one"));
    assert!(
        fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .lines()
            .all(|line| !line.contains("/images/root "))
    );
    let plain = Farm::builder().without("gateway").workspaces(1).env("FOREBAY_IMAGES", "false").start().await;
    let key = plain.submit("g", requiring("container-image", &image, "true")).await;
    let why = plain.cli(&["why", &key.to_string(), "--no-wait"]).await;
    assert!(why.stdout.contains("container-image"), "{why:?}");
}
