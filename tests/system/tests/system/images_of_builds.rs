//! Builds in container images.

use std::{fs, os::unix::fs::PermissionsExt as _};

use farm::{Builder, Farm, SOON};
use model::{BuildRequest, BuildRequirements, Outcome, ReasonCode, WorkspaceUse};
use serde_json::json;

use crate::{
    acting::{own, processes_with},
    check::{ended_as, script, until},
    images::registry::{Fault, Registry, files, link, programs},
    services::rounds,
};

const PROGRAMS: [&str; 6] = ["/bin/sh", "/bin/sleep", "/bin/cat", "/bin/ls", "/usr/bin/touch", "/usr/bin/id"];

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
    let log = farm.cli(&["logs", &key.to_string()]).await;
    // What the worker says is not output of the command.
    let image = registry.image(&format!("tools@{digest}"));
    for line in
        [format!("fetching the image {}", registry.image("tools:1")), format!("runs in the image {image}")]
    {
        assert!(log.stderr.contains(&line), "{line}: {log:?}");
    }
    assert_eq!(log.stdout, "one\nyes C.UTF-8\n/special\nno-passwd\nread-only\nwritten\nproc\n");
    // The next build of the same worker has none.
    assert!(said(&farm, script("[ -e /etc/passwd ] && echo machine")).await.ends_with("machine\n"));
}

#[tokio::test]
async fn a_workspace_stays_warm_in_the_same_content_only() {
    let registry = Registry::start().await;
    let first = push(&registry, "tools:1", "one");
    let farm = builder(&registry).env("FOREBAY_IMAGE_TAG_SECONDS", "0").start().await;
    let text = "ls kept 2>/dev/null; touch kept; cat /etc/version";
    let warm = |image: &str| BuildRequest {
        workspace: Some(WorkspaceUse::Warm),
        ..requiring("container-image", image, text)
    };
    let by_tag = || warm(&registry.image("tools:1"));
    let by_digest = || warm(&registry.image(&format!("tools@{first}")));
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
    let image = |name: &str| registry.image(name);
    let environments =
        json!({"sh": image("tools:1"), "g/sh": image("tools:own"), "h/other": image("tools:own")});
    let farm = builder(&registry).env("FOREBAY_ENVIRONMENTS", environments.to_string()).start().await;
    assert!(said(&farm, requiring("env", "sh", "cat /etc/version")).await.ends_with("own"));
    let request = requiring("env", "other", "true");
    let refused = farm.client().create(&"g".parse().unwrap(), &request, None).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("env") && error.contains("there is no environment of this name"), "{error}");
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
    let request = requiring("container-image", &image, "true");
    let refused = plain.client().create(&"g".parse().unwrap(), &request, None).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("no worker has offered the property container-image"), "{error}");
}

#[tokio::test]
async fn chaos_a_killed_worker_leaves_nothing_of_a_build_in_an_image() {
    let registry = Registry::start().await;
    push(&registry, "tools:1", "one");
    let farm = builder(&registry).start().await;
    let folder = farm.data().join("images");
    for round in 0..rounds() {
        let marker = own(&format!("77{round}66.5"));
        let text = format!("sleep {marker} & sleep {marker}");
        let key = farm.submit("g", requiring("container-image", &registry.image("tools:1"), &text)).await;
        until("it runs", SOON, || processes_with(&format!("sleep\0{marker}")).len() >= 2).await;
        let mut worker = farm.take("worker");
        worker.kill9();
        worker.wait_exit(SOON).await;
        until("its processes are dead", SOON, || processes_with(&marker).is_empty()).await;
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(folder.to_str().unwrap()), "{mounts}");
        let cancelled = farm.cli(&["cancel", &key.to_string()]).await;
        assert_eq!(cancelled.code, 0, "{cancelled:?}");
        farm.keep(farm.spawn("worker").await);
    }
    let request = requiring("container-image", &registry.image("tools:1"), "cat /etc/version");
    assert!(said(&farm, request).await.ends_with("one"));
}

#[tokio::test]
async fn a_registry_that_is_gone_costs_only_the_builds_that_need_it() {
    let registry = Registry::start().await;
    push(&registry, "tools:1", "one");
    push(&registry, "other:1", "two");
    let farm = builder(&registry).env("FOREBAY_IMAGE_TAG_SECONDS", "0").start().await;
    let image = registry.image("tools:1");
    assert!(said(&farm, requiring("container-image", &image, "cat /etc/version")).await.ends_with("one"));
    registry.fail("/", Fault::Status(503, "1"));
    // What the tag meant is known, and its layers are here.
    assert!(said(&farm, requiring("container-image", &image, "cat /etc/version")).await.ends_with("one"));
    let key = farm.submit("g", requiring("container-image", &registry.image("other:1"), "true")).await;
    let record = ended_as(&farm, &key, Outcome::Failed).await;
    let reason = record.result().unwrap().reason.clone().unwrap();
    assert_eq!(reason.code, ReasonCode::ContextUnavailable, "{reason:?}");
    assert!(reason.message.contains("503"), "{reason:?}");
    // The worker, which cannot be the reason, accepts the next build at once.
    let workers = farm.cli(&["workers", "--json"]).await.stdout;
    assert!(!workers.contains("trying again"), "{workers}");
    assert!(said(&farm, script("echo on")).await.ends_with("on\n"));
}

#[tokio::test]
async fn an_image_leads_no_path_of_the_farm_elsewhere() {
    let registry = Registry::start().await;
    // Its folders are protected in every image if it is in /tmp.
    let Ok(place) = tempfile::tempdir_in("/srv") else { return };
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let farm = builder(&registry).without("worker").start().await;
    let data = place.path().join("data").display().to_string();
    let cas = format!("file://{}", farm.data().join("cas").display());
    farm.keep(farm.spawn_with_env("worker", &[("FOREBAY_DATA", &data), ("FOREBAY_CAS_URL", &cas)]).await);
    let (top, outside) = ("srv", place.path().join("outside"));
    fs::create_dir_all(&outside).unwrap();
    let links = [
        format!("/oldroot{}", outside.display()),
        format!("../oldroot{}", outside.display()),
        "/proc/self/root".to_owned(),
        "/nowhere".to_owned(),
    ];
    for (number, target) in links.iter().enumerate() {
        let name = format!("links:{number}");
        registry.push(&name, &[programs(&PROGRAMS), link(top, target)], &json!({}));
        let text = "echo in > file && /bin/cat file";
        assert!(
            said(&farm, requiring("container-image", &registry.image(&name), text)).await.ends_with("in\n")
        );
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{target} leads outside");
    }
    registry.push("file:1", &[programs(&PROGRAMS), files(&[(top, "no folder")])], &json!({}));
    let request = requiring("container-image", &registry.image("file:1"), "echo in");
    assert!(said(&farm, request).await.ends_with("in\n"));
}

#[tokio::test]
async fn an_image_may_have_the_same_layer_twice() {
    let registry = Registry::start().await;
    let (one, two) = (files(&[("etc/version", "one")]), files(&[("etc/version", "two")]));
    let empty = files(&[]);
    let layers = [programs(&PROGRAMS), one.clone(), empty.clone(), two, empty.clone(), one, empty];
    registry.push("twice:1", &layers, &json!({}));
    let farm = builder(&registry).start().await;
    let request = requiring("container-image", &registry.image("twice:1"), "/bin/cat /etc/version");
    assert!(said(&farm, request).await.ends_with("one"));
}
