//! Actions in container images.

pub(crate) mod registry;

use std::{fs, time::Duration};

use farm::{Builder, Farm, Process, SOON};
use model::{BlobDigest, Digest};
use reapi::execution::{Action, ExecuteResponse, Platform, platform::Property};
use registry::{Fault, Registry, files, programs};
use remote::{Remote, RemoteError};
use tokio::sync::watch;
use tonic::Code;

use crate::{
    acting::{self, ACTING, SHA256, processes_with},
    check::until,
    jobs,
    services::rounds,
};

/// Programs that the images of these tests have.
pub(crate) const PROGRAMS: [&str; 6] =
    ["/bin/sh", "/bin/cat", "/bin/ls", "/usr/bin/id", "/usr/bin/touch", "/bin/sleep"];

pub(crate) fn builder(registry: &Registry) -> Builder {
    Farm::builder()
        .only(&ACTING)
        .env("FOREBAY_REGISTRIES", registry.setting())
        .env("FOREBAY_IMAGE_TAG_SECONDS", "0")
}

pub(crate) fn config() -> serde_json::Value {
    serde_json::json!({ "Env": ["PATH=/usr/bin:/bin", "FROM_IMAGE=yes"] })
}

/// Uploads an action that runs a script in an image.
pub(crate) async fn asking(remote: &Remote, image: &str, script: &str) -> BlobDigest {
    asking_with(remote, &[("container-image", image)], script).await
}

pub(crate) async fn asking_with(remote: &Remote, properties: &[(&str, &str)], script: &str) -> BlobDigest {
    let property = |(name, value): &(&str, &str)| Property { name: (*name).into(), value: (*value).into() };
    let platform = Platform { properties: properties.iter().map(property).collect() };
    let action = Action { platform: Some(platform), ..Action::default() };
    acting::upload_as(remote, &acting::sh(script), action, &SHA256.empty()).await
}

async fn run(remote: &Remote, image: &str, script: &str) -> Result<ExecuteResponse, RemoteError> {
    let action = asking(remote, image, script).await;
    let ended = tokio::time::timeout(2 * SOON, remote.execute(&action, false, 0, |_, _| {})).await;
    ended.expect("the execution ends").map(|executed| executed.response)
}

pub(crate) async fn said(remote: &Remote, image: &str, script: &str) -> String {
    let response = run(remote, image, script).await.unwrap();
    acting::stdout(remote, &response).await
}

/// The status of a refused request, or of an execution that failed.
pub(crate) fn refusal(result: Result<ExecuteResponse, RemoteError>) -> (Code, String) {
    match result {
        Ok(response) => {
            let status = response.status.expect("a status");
            (Code::from_i32(status.code), status.message)
        }
        Err(RemoteError::Refused { status, .. }) => (status.code(), status.message().to_owned()),
        Err(other) => panic!("{other:?}"),
    }
}

async fn kill_executor(farm: &Farm) {
    let mut executor = farm.take("executor");
    executor.kill9();
    executor.wait_exit(SOON).await;
}

#[tokio::test]
async fn an_action_sees_the_files_of_its_image_and_nothing_of_the_machine() {
    let registry = Registry::start().await;
    registry.push("tools:1", &[programs(&PROGRAMS), files(&[("etc/version", "one")])], &config());
    let farm = builder(&registry).start().await;
    let remote = acting::remote(&farm).await;
    let image = registry.image("tools:1");
    let script = "cat /etc/version; echo; echo $FROM_IMAGE; [ -e /etc/passwd ] || echo no-passwd; \
                  ls /usr/share 2>/dev/null; touch /new 2>/dev/null || echo read-only; touch /tmp/x /var/tmp/x && echo tmp; \
                  ls /tmp; cat /etc/hosts | { read line; echo $line; }; ls /.forebay >/dev/null && echo kept > kept; \
                  [ $(id -u) != 0 ] && echo no-root; ls /proc/1 >/dev/null && echo proc";
    let wanted = "one\nyes\nno-passwd\nread-only\ntmp\nx\n127.0.0.1 localhost\nno-root\nproc\n";
    assert_eq!(said(&remote, &image, script).await, wanted);
    // What one action leaves in /tmp is not there for the next one, in the same sandbox.
    assert_eq!(said(&remote, &image, "ls /tmp; echo second").await, "second\n");
    let plain = acting::upload(&remote, "[ -e /etc/passwd ] && echo machine").await;
    let response = acting::executed(&remote, plain).await;
    assert_eq!(acting::stdout(&remote, &response).await, "machine\n");
}

#[tokio::test]
async fn an_action_under_a_tag_that_moved_is_another_action() {
    let registry = Registry::start().await;
    let base = programs(&PROGRAMS);
    let push = |version: &str| {
        registry.push("tools:latest", &[base.clone(), files(&[("etc/version", version)])], &config())
    };
    let first = push("one");
    let farm = builder(&registry).start().await;
    let remote = acting::remote(&farm).await;
    let (image, script) = (registry.image("tools"), "cat /etc/version");
    let cached = async |image: &str| {
        let response = run(&remote, image, script).await.unwrap();
        (response.cached_result, acting::stdout(&remote, &response).await)
    };
    assert_eq!(cached(&image).await, (false, "one".to_owned()));
    assert_eq!(cached(&image).await, (true, "one".to_owned()));
    push("two");
    assert_eq!(cached(&image).await, (false, "two".to_owned()));
    // By its digest, the first one is still the same action.
    let pinned = registry.image(&format!("tools@{first}"));
    assert_eq!(cached(&pinned).await, (true, "one".to_owned()));
    // Three layers of two images: the base was unpacked once.
    assert_eq!(registry.blobs_read(), 3 + 2, "layers and configurations");
}

#[tokio::test]
async fn a_second_executor_and_a_registry_that_is_gone_need_no_layer_again() {
    let registry = Registry::start().await;
    registry.push("tools:1", &[programs(&PROGRAMS), files(&[("etc/version", "one")])], &config());
    let farm = builder(&registry).env("FOREBAY_EXECUTOR_SLOTS", "1").start().await;
    let remote = acting::remote(&farm).await;
    let image = registry.image("tools:1");
    assert_eq!(said(&remote, &image, "cat /etc/version").await, "one");
    let read = registry.blobs_read();
    let reads = registry.reads();
    registry.fail("/", Fault::Status(503, "1"));
    // It has the layers unpacked.
    assert_eq!(said(&remote, &image, "cat /etc/version; echo again").await, "oneagain\n");
    // Another machine reads them from the store.
    kill_executor(&farm).await;
    fs::remove_dir_all(farm.data().join("images")).unwrap();
    farm.keep(farm.spawn("executor").await);
    assert_eq!(said(&remote, &image, "cat /etc/version; echo on another").await, "oneon another\n");
    assert_eq!(registry.blobs_read(), read);
    assert!(registry.reads() > reads, "the tag was looked up again");
}

#[tokio::test]
async fn an_image_that_cannot_be_used_is_refused_with_its_name_and_the_reason() {
    let registry = Registry::start().await;
    let base = programs(&PROGRAMS);
    let digest_of = |layer: &[u8]| model::Digest::of(layer).to_string();
    registry.push("good:1", std::slice::from_ref(&base), &config());
    registry.push("links:1", &[files(&[("../outside", "bad")])], &config());
    let wrong_id = vec![digest_of(b"other")];
    registry.push_as("wrong:1", vec![base.clone()], &wrong_id, &config());
    registry.push_as("packed:1", vec![b"BZh9rubbish".to_vec()], &[digest_of(b"x")], &config());
    registry.push_as("few:1", vec![base.clone()], &[], &config());
    let many = vec![files(&[("a", "")]); 501];
    registry.push("many:1", &many, &config());
    let farm = builder(&registry).env("FOREBAY_IMAGE_BYTES_MAX", "100000000").start().await;
    let remote = acting::remote(&farm).await;
    let run = async |name: &str| refusal(run(&remote, &registry.image(name), "cat /etc/version").await);
    for (name, code, expected) in [
        ("missing:1", Code::FailedPrecondition, "does not have manifests/1"),
        ("links:1", Code::FailedPrecondition, "leaves the image"),
        ("wrong:1", Code::FailedPrecondition, "has the digest"),
        ("packed:1", Code::FailedPrecondition, "bzip2"),
        ("few:1", Code::FailedPrecondition, "its manifest 1"),
        ("many:1", Code::FailedPrecondition, "501 layers"),
    ] {
        let (found, message) = run(name).await;
        assert_eq!(found, code, "{name}: {message}");
        // A tag that was looked up is a digest by then.
        let repository = name.split(':').next().unwrap();
        assert!(message.contains(expected) && message.contains(repository), "{name}: {message}");
    }
    let closed = "http://169.254.169.254/latest".to_owned();
    for (fault, code, expected) in [
        (Fault::Status(403, "1"), Code::PermissionDenied, "403"),
        (Fault::Status(429, "7"), Code::Unavailable, "429"),
        (Fault::Status(500, "1"), Code::Unavailable, "500"),
        (Fault::Wrong, Code::FailedPrecondition, "cannot be read"),
        (Fault::Redirect(closed), Code::PermissionDenied, "fetch_hosts"),
        (
            Fault::Redirect("file:///etc/passwd".to_owned()),
            Code::FailedPrecondition,
            "neither http nor https",
        ),
    ] {
        let shown = format!("{fault:?}");
        registry.fail("/manifests/", fault);
        let (found, message) = run("good:1").await;
        assert_eq!(found, code, "{shown}: {message}");
        assert!(message.contains(expected), "{shown}: {message}");
        registry.mend();
    }
    for (platform, expected) in [
        (vec![("container-image", "docker://Not/An/Image")], "container-image"),
        (vec![("container-image", "docker://a.b/c"), ("container-image", "docker://a.b/d")], "two"),
    ] {
        let action = asking_with(&remote, &platform, "exit 0").await;
        let refused = remote.execute(&action, false, 0, |_, _| {}).await.map(|executed| executed.response);
        let (code, message) = refusal(refused);
        assert_eq!(code, Code::InvalidArgument, "{message}");
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(said(&remote, &registry.image("good:1"), "echo fine").await, "fine\n");
}

#[tokio::test]
async fn a_layer_that_breaks_off_is_fetched_again_and_the_action_runs() {
    let registry = Registry::start().await;
    registry.push("tools:1", &[programs(&PROGRAMS)], &config());
    let farm = builder(&registry).start().await;
    let remote = acting::remote(&farm).await;
    registry.fail("/blobs/", Fault::Truncated);
    let (image, mended) = (registry.image("tools:1"), registry.clone());
    let mending = tokio::spawn(async move {
        until("a layer was asked for", SOON, || mended.blobs_read() > 0).await;
        mended.mend();
    });
    assert_eq!(said(&remote, &image, "echo fine").await, "fine\n");
    mending.await.unwrap();
}

#[tokio::test]
async fn a_private_registry_gives_images_to_the_credentials_of_the_settings_only() {
    let registry = Registry::start().await;
    registry.push("private/tools:1", &[programs(&PROGRAMS)], &config());
    registry.require("farm", "secret");
    let folder = tempfile::tempdir().unwrap();
    let (right, wrong) = (folder.path().join("right"), folder.path().join("wrong"));
    fs::write(&right, "secret\n").unwrap();
    fs::write(&wrong, "guess").unwrap();
    let image = registry.image("private/tools:1");
    for (setting, works) in [
        (registry.setting(), false),
        (registry.setting_with("farm", &wrong), false),
        (registry.setting_with("farm", &right), true),
    ] {
        let farm = builder(&registry).env("FOREBAY_REGISTRIES", &setting).start().await;
        let remote = acting::remote(&farm).await;
        if works {
            assert_eq!(said(&remote, &image, "echo in").await, "in\n");
        } else {
            let (code, message) = refusal(run(&remote, &image, "echo in").await);
            assert_eq!(code, Code::PermissionDenied, "{message}");
            assert!(message.contains(registry.host()) && !message.contains("guess"), "{message}");
        }
    }
}

#[tokio::test]
async fn only_repositories_that_the_settings_name_are_read() {
    let registry = Registry::start().await;
    for repository in ["team/tools:1", "teams:1"] {
        registry.push(repository, &[programs(&PROGRAMS)], &config());
    }
    let allowed = serde_json::json!([format!("{}/team", registry.host())]).to_string();
    let farm = builder(&registry).env("FOREBAY_IMAGE_REPOSITORIES", &allowed).start().await;
    let remote = acting::remote(&farm).await;
    assert_eq!(said(&remote, &registry.image("team/tools:1"), "echo in").await, "in\n");
    let before = registry.reads();
    let (code, message) = refusal(run(&remote, &registry.image("teams:1"), "echo in").await);
    assert_eq!(code, Code::PermissionDenied, "{message}");
    assert!(message.contains("image_repositories"), "{message}");
    assert_eq!(registry.reads(), before, "nothing was asked");
}

#[tokio::test]
async fn an_environment_is_the_image_that_the_settings_name_and_is_fetched_ahead() {
    let registry = Registry::start().await;
    let base = programs(&PROGRAMS);
    registry.push("tools:1", &[base.clone(), files(&[("etc/version", "all")])], &config());
    registry.push("tools:own", &[base, files(&[("etc/version", "own")])], &config());
    let environments = serde_json::json!({
        "sh": registry.image("tools:1"), "special/sh": registry.image("tools:own"),
    });
    let farm = builder(&registry)
        .env("FOREBAY_ENVIRONMENTS", environments.to_string())
        .env("FOREBAY_PREFETCH_IMAGES", "true")
        .env("FOREBAY_INSTANCES", "=default special=special")
        .start()
        .await;
    until("both images were fetched", SOON, || registry.blobs_read() == 3 + 2).await;
    for (instance, wanted) in [("", "all"), ("special", "own")] {
        let remote = Remote::connect(&farm.grpc_url(), instance, SHA256).await.unwrap();
        let action = asking_with(&remote, &[("env", "sh")], "cat /etc/version").await;
        let response = acting::executed(&remote, action).await;
        assert_eq!(acting::stdout(&remote, &response).await, wanted);
    }
    assert_eq!(registry.blobs_read(), 5);
    let remote = acting::remote(&farm).await;
    let unknown = asking_with(&remote, &[("env", "none")], "exit 0").await;
    let refused = remote.execute(&unknown, false, 0, |_, _| {}).await.map(|executed| executed.response);
    let (code, message) = refusal(refused);
    assert_eq!(code, Code::FailedPrecondition, "{message}");
    assert!(message.contains("\"env\""), "{message}");
}

#[tokio::test]
async fn chaos_a_killed_executor_leaves_no_process_and_no_mount() {
    let registry = Registry::start().await;
    registry.push("tools:1", &[programs(&PROGRAMS), files(&[("a", "b")])], &config());
    let farm = builder(&registry).start().await;
    let remote = acting::remote(&farm).await;
    let folder = farm.data().join("images");
    for round in 0..rounds() {
        let marker = acting::own(&format!("99{round}77.5"));
        let action = asking(&remote, &registry.image("tools:1"), &format!("sleep {marker}")).await;
        let running = acting::execute(&remote, action);
        until("it runs", SOON, || !processes_with(&marker).is_empty()).await;
        kill_executor(&farm).await;
        until("its processes are dead", SOON, || processes_with(&marker).is_empty()).await;
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(folder.to_str().unwrap()), "{mounts}");
        running.abort();
        farm.keep(farm.spawn("executor").await);
    }
    assert_eq!(said(&remote, &registry.image("tools:1"), "cat /a").await, "b");
}

#[tokio::test]
async fn those_who_wait_see_how_much_of_an_image_was_fetched() {
    let registry = Registry::start().await;
    let own_layer = |name: &str| files(&[("name", name)]);
    for name in ["one:1", "two:1"] {
        registry.push(name, &[programs(&PROGRAMS), own_layer(name)], &config());
    }
    let farm = Farm::builder().with_actions().workspaces(1).env("FOREBAY_REGISTRIES", registry.setting());
    let farm = farm.start().await;
    let image = |name: &str| registry.image(name);
    let job = jobs::job(&serde_json::json!([
        {"id": "a", "command": ["cat", "/name"], "platform": {"container-image": image("two:1")}},
    ]));
    let file = farm.folder().join("job.json");
    fs::write(&file, serde_json::to_string(&job).unwrap()).unwrap();
    let (url, platform) = (farm.grpc_url(), format!("container-image={}", image("one:1")));
    let exec =
        ["exec", "--grpc", &url, "--progress", "always", "--platform", &platform, "--", "cat", "/name"];
    let submit = ["submit", "--follow", "--job", file.to_str().unwrap()];
    for (call, name, line) in
        [(&exec[..], "one:1", "fetching the image, "), (&submit[..], "two:1", "task a: fetching the image, ")]
    {
        let (release, held) = watch::channel(false);
        registry.fail(&Digest::of(&own_layer(name)).to_string(), Fault::Held(held));
        let log = farm.folder().join(format!("logs/{}.log", call[0]));
        let mut process = Process::start(call[0], farm.command(call), &log, farm.servers.guard());
        until(line, SOON, || process.log_text().contains(line)).await;
        release.send_replace(true);
        let status = process.wait_exit(SOON).await;
        assert_eq!(status.code(), Some(0), "{status}: {}", process.log_tail());
    }
}

#[tokio::test]
async fn limits_hold_inside_of_an_image() {
    let registry = Registry::start().await;
    registry.push("tools:1", &[programs(&PROGRAMS)], &config());
    let farm = builder(&registry).start().await;
    let remote = acting::remote(&farm).await;
    let image = registry.image("tools:1");
    for (limit, value, script) in [
        ("limit-cpu-ms", "300", "while :; do :; done"),
        ("limit-processes", "5", "for i in 1 2 3 4 5 6 7 8; do sleep 50 & done; wait"),
        ("limit-output-bytes", "1000", "while :; do echo line; done"),
    ] {
        let properties = [("container-image", image.as_str()), (limit, value)];
        let action = asking_with(&remote, &properties, script).await;
        let ended = tokio::time::timeout(Duration::from_secs(60), acting::executed(&remote, action)).await;
        let status = ended.unwrap().status.unwrap();
        assert_eq!(Code::from_i32(status.code), Code::ResourceExhausted, "{status:?}");
        assert!(status.message.contains(limit), "{status:?}");
    }
}

#[tokio::test]
async fn what_an_action_writes_into_a_writable_root_is_gone_with_it() {
    let registry = Registry::start().await;
    let layer = files(&[("etc/version", "one"), ("etc/other", "kept")]);
    let more = programs(&["/bin/mkdir", "/bin/rm", "/usr/bin/head"]);
    registry.push("tools:1", &[programs(&PROGRAMS), more, layer], &config());
    let farm = builder(&registry).env("FOREBAY_EXECUTOR_SLOTS", "1").start().await;
    let remote = acting::remote(&farm).await;
    let image = registry.image("tools:1");
    let writing = [("container-image", image.as_str()), ("writable-root", "true")];
    let said = async |properties: &[(&str, &str)], script: &str| {
        let action = asking_with(&remote, properties, script).await;
        let response = acting::executed(&remote, action).await;
        acting::stdout(&remote, &response).await
    };
    let script = "[ $(id -u) != 0 ] && cat /etc/version /etc/other; echo new > /etc/new; \
                  mkdir -p /opt/a/b && echo x > /opt/a/b/c && rm /etc/other && [ ! -e /etc/other ] && echo gone; \
                  rm /etc/version && echo two > /etc/version && cat /etc/version /etc/new /opt/a/b/c";
    assert_eq!(said(&writing, script).await, "onekeptgone\ntwo\nnew\nx\n");
    let look = "cat /etc/version /etc/other; ls /opt /etc/new 2>/dev/null; true";
    for properties in [&writing[..], &writing[..1]] {
        assert_eq!(said(properties, look).await, "onekept");
    }
    let plain = "echo x > /etc/new 2>/dev/null || echo read-only";
    assert_eq!(said(&writing[..1], plain).await, "read-only\n");
    // What is written is memory of the action: the file system is full, or the memory limit is reached.
    let limited = [writing[0], writing[1], ("EstimatedMemory", "64M")];
    let much = "head -c 300000000 /dev/zero > /full 2>/dev/null && echo all || echo full";
    let response = acting::executed(&remote, asking_with(&remote, &limited, much).await).await;
    match response.status.as_ref().map(|status| Code::from_i32(status.code)) {
        None | Some(Code::Ok) => assert_eq!(acting::stdout(&remote, &response).await, "full\n"),
        Some(code) => assert_eq!(code, Code::ResourceExhausted, "{response:?}"),
    }
    let without = asking_with(&remote, &writing[1..], "exit 0").await;
    let (code, message) = refusal(Ok(acting::executed(&remote, without).await));
    assert_eq!(code, Code::InvalidArgument, "{message}");
}

#[tokio::test]
async fn a_writable_root_is_refused_if_no_executor_offers_it() {
    let registry = Registry::start().await;
    registry.push("tools:1", &[programs(&PROGRAMS)], &config());
    let farm = builder(&registry).env("FOREBAY_IMAGES", "false").start().await;
    let remote = acting::remote(&farm).await;
    let action = asking_with(&remote, &[("writable-root", "true")], "exit 0").await;
    let refused = remote.execute(&action, false, 0, |_, _| {}).await.map(|executed| executed.response);
    let (code, message) = refusal(refused);
    assert_eq!(code, Code::FailedPrecondition, "{message}");
    assert!(message.contains("writable-root") && message.contains("overlay"), "{message}");
}

#[tokio::test]
async fn a_task_of_a_job_names_an_environment() {
    let registry = Registry::start().await;
    registry.push("tools:1", &[programs(&PROGRAMS), files(&[("etc/version", "one")])], &config());
    let environments = serde_json::json!({ "sh": registry.image("tools:1") });
    let builder = Farm::builder().with_actions().workspaces(1).env("FOREBAY_REGISTRIES", registry.setting());
    let farm = jobs::start(builder.env("FOREBAY_ENVIRONMENTS", environments.to_string())).await;
    let task = |name: &str| {
        serde_json::json!([{"id": "a", "command": ["/bin/sh", "-c", "cat /etc/version > kept"],
            "outputs": ["kept"], "platform": {"env": name}}])
    };
    let ended = jobs::run(&farm, jobs::request(jobs::job(&task("sh")))).await;
    assert_eq!(ended.outcome(), model::Outcome::Succeeded, "{:#?}", ended.reports);
    let refused =
        farm.client().create(&"g".parse().unwrap(), &jobs::request(jobs::job(&task("java"))), None).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("\"env\"") && error.contains("the setting environments"), "{error}");
}
