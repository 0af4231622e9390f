//! The users that images name for their commands, and builds that write to their image.

use farm::{Builder, Farm};
use model::{BuildRequest, BuildRequirements, Outcome, ReasonCode, ServiceRequest, WorkspaceUse};
use serde_json::{Value, json};
use tonic::Code;

use crate::{
    acting::{self, ACTING},
    check::{ended, ended_as, script},
    images::{
        asking, refusal,
        registry::{Registry, link, owned, programs},
        said,
    },
};

const PROGRAMS: [&str; 9] = [
    "/bin/sh",
    "/bin/cat",
    "/bin/ls",
    "/bin/mkdir",
    "/bin/rm",
    "/bin/sleep",
    "/usr/bin/id",
    "/usr/bin/stat",
    "/usr/bin/touch",
];
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\npostgres:x:999:998::/var/lib/db:/bin/sh\ndev:x:1000:1000::/home/dev:/bin/sh\n";
const GROUP: &str = "root:x:0:\nstaff:x:50:\n";

/// Puts an image with users, whose files only they can read.
fn push(registry: &Registry, name: &str, user: Option<&str>, passwd: &str) -> String {
    let files = owned(&[
        ("etc/passwd", 0, 0o644, passwd),
        ("etc/group", 0, 0o644, GROUP),
        ("etc/ld.so.preload", 0, 0o644, "/owned/library.so"),
        ("home/dev/", 1000, 0o700, ""),
        ("home/dev/own", 1000, 0o600, "of dev\n"),
        ("var/lib/db/", 999, 0o700, ""),
        ("var/lib/db/own", 999, 0o600, "of postgres\n"),
        ("root/", 0, 0o700, ""),
        ("root/own", 0, 0o600, "of root\n"),
    ]);
    let config = json!({ "Env": ["PATH=/usr/bin:/bin"], "User": user.unwrap_or("") });
    registry.push(name, &[programs(&PROGRAMS), files], &config);
    registry.image(name)
}

/// Prints who a command is, and the files that it can read.
const IDENTITY: &str = "echo $(id -u) $(id -g) $(id -un 2>/dev/null) $HOME; cat /home/dev/own /var/lib/db/own /root/own 2>/dev/null; \
                    ls /etc/ld.so.preload >/dev/null && [ ! -s /etc/ld.so.preload ] || echo preloads";

const USERS: [(Option<&str>, &str); 8] = [
    (Some("1000"), "1000 1000 dev /home/dev\nof dev\n"),
    (Some("dev"), "1000 1000 dev /home/dev\nof dev\n"),
    (Some("postgres"), "999 998 postgres /var/lib/db\nof postgres\n"),
    (Some("1000:77"), "1000 77 dev /home/dev\nof dev\n"),
    (Some("dev:staff"), "1000 50 dev /home/dev\nof dev\n"),
    (Some("4321"), "4321 0 4321 /\n"),
    (Some("root"), "0 0 root /root\nof root\n"),
    (None, "65534 65534 65534\n"),
];

fn executors(registry: &Registry) -> Builder {
    Farm::builder()
        .only(&ACTING)
        .env("FOREBAY_REGISTRIES", registry.setting())
        .env("FOREBAY_EXECUTOR_SLOTS", "1")
}

#[tokio::test]
async fn an_action_is_the_user_that_its_image_names() {
    let registry = Registry::start().await;
    let farm = executors(&registry).start().await;
    let remote = acting::remote(&farm).await;
    for (number, (user, wanted)) in USERS.into_iter().enumerate() {
        let image = push(&registry, &format!("users:{number}"), user, PASSWD);
        // One slot runs them all, each in the sandbox of its image.
        let said = said(&remote, &image, IDENTITY).await;
        assert_eq!(said, wanted, "{user:?}");
    }
}

#[tokio::test]
async fn an_image_whose_user_cannot_be_found_is_refused_with_the_reason() {
    let registry = Registry::start().await;
    let farm = executors(&registry).start().await;
    let remote = acting::remote(&farm).await;
    let huge = "x".repeat(2 << 20);
    let outside = [programs(&PROGRAMS), link("etc/passwd", "/../../../../../../etc/passwd")];
    registry.push("outside:1", &outside, &json!({ "User": "daemon" }));
    for (image, part) in [
        (push(&registry, "unknown:1", Some("nginx"), PASSWD), "its /etc/passwd has no user \"nginx\""),
        (push(&registry, "group:1", Some("dev:wheel"), PASSWD), "its /etc/group has no group \"wheel\""),
        (push(&registry, "huge:1", Some("dev"), &huge), "larger than 1048576 bytes"),
        (push(&registry, "binary:1", Some("dev"), "\0\u{1}dev:\0:\n::::\n"), "no user \"dev\""),
        // The machine has this user.
        (registry.image("outside:1"), "no user \"daemon\""),
    ] {
        let action = asking(&remote, &image, "exit 0").await;
        let refused = remote.execute(&action, false, 0, |_, _| {}).await.map(|executed| executed.response);
        let (code, message) = refusal(refused);
        assert_eq!(code, Code::FailedPrecondition, "{message}");
        assert!(message.contains(part) && message.contains("cannot be used"), "{message}");
    }
    let image = push(&registry, "users:1", Some("dev"), PASSWD);
    assert_eq!(said(&remote, &image, "id -u").await, "1000\n");
}

fn workers(registry: &Registry) -> Builder {
    Farm::builder().without("gateway").workspaces(1).env("FOREBAY_REGISTRIES", registry.setting())
}

fn build(requirements: &[(&str, &str)], text: &str) -> BuildRequest {
    let owned = requirements.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    BuildRequest { requirements: BuildRequirements(owned.collect()), ..script(text) }
}

/// What a build that succeeds prints.
async fn printed(farm: &Farm, request: BuildRequest) -> String {
    let key = farm.submit("g", request).await;
    ended_as(farm, &key, Outcome::Succeeded).await;
    let log = farm.cli(&["logs", &key.to_string()]).await;
    assert_eq!(log.code, 0, "{log:?}");
    log.stdout
}

async fn failure(farm: &Farm, request: BuildRequest) -> (ReasonCode, String) {
    let key = farm.submit("g", request).await;
    let reason = ended_as(farm, &key, Outcome::Failed).await.result().unwrap().reason.clone().unwrap();
    (reason.code, reason.message)
}

#[tokio::test]
async fn a_build_is_the_user_that_its_image_names() {
    let registry = Registry::start().await;
    let images: Vec<String> = USERS
        .iter()
        .enumerate()
        .map(|(number, (user, _))| push(&registry, &format!("users:{number}"), *user, PASSWD))
        .collect();
    let unknown = push(&registry, "unknown:1", Some("nginx"), PASSWD);
    // With a user for each workspace, and without.
    for first in ["0", "41000"] {
        let farm = workers(&registry).env("FOREBAY_BUILD_UID", first).start().await;
        for ((user, wanted), image) in USERS.iter().zip(&images) {
            let text = format!("{IDENTITY}; touch made $HOME/made && stat -c %u made");
            let printed = printed(&farm, build(&[("container-image", image)], &text)).await;
            let mut wanted_lines = wanted.lines();
            let ids = wanted_lines.next().unwrap().split(' ').take(2).collect::<Vec<_>>();
            let (id, rest) = (ids[0], wanted_lines.collect::<Vec<_>>());
            let lines: Vec<&str> = printed.lines().collect();
            if user.is_none() {
                // As before, the user of the worker or of the workspace.
                assert_eq!(lines[0].split(' ').next(), Some(first), "{printed}");
                continue;
            }
            assert!(lines[0].starts_with(&ids.join(" ")), "{user:?}: {printed}");
            assert_eq!(lines[1..lines.len() - 1], rest, "{user:?}: {printed}");
            assert_eq!(lines.last(), Some(&id), "{user:?}: {printed}");
        }
        let (code, message) = failure(&farm, build(&[("container-image", &unknown)], "true")).await;
        assert_eq!(code, ReasonCode::ContextUnavailable);
        assert!(message.contains("no user \"nginx\""), "{message}");
        // A build without an image writes to the same workspace.
        assert_eq!(printed(&farm, script("touch made $HOME/made && echo written")).await, "written\n");
    }
}

/// A server that refuses to be root, as that of `PostgreSQL` does.
const SERVER: &str = "if [ $(id -u) = 0 ]; then echo root is refused >&2; exit 1; fi; work=$PWD; cd /var/lib/db && cat own && \
                      touch $work/up && exec sleep 1000";

fn server(registry: &Registry, name: &str, user: &str) -> String {
    let files = owned(&[
        ("etc/passwd", 0, 0o644, PASSWD),
        ("var/lib/db/", 999, 0o700, ""),
        ("var/lib/db/own", 999, 0o600, "of postgres\n"),
    ]);
    let config = json!({ "Env": ["PATH=/usr/bin:/bin"], "User": user, "Entrypoint": ["/bin/sh", "-c"], "Cmd": [SERVER] });
    registry.push(name, &[programs(&PROGRAMS), files], &config);
    registry.image(name)
}

#[tokio::test]
async fn a_server_that_refuses_root_serves_a_build() {
    let registry = Registry::start().await;
    let farm = workers(&registry).start().await;
    let services = |image: &str| -> Vec<ServiceRequest> {
        let ready = json!({"command": ["/bin/cat", "up"]});
        let all: Value = json!([{"name": "db", "image": image, "ready": ready}]);
        serde_json::from_value(all).unwrap()
    };
    let with = |image: &str| BuildRequest { services: services(image), ..script("echo served") };
    assert_eq!(printed(&farm, with(&server(&registry, "db:1", "postgres"))).await, "served\n");
    let (code, message) = failure(&farm, with(&server(&registry, "db:2", "root"))).await;
    assert_eq!(code, ReasonCode::ServiceFailed);
    assert!(message.contains("root is refused"), "{message}");
}

#[tokio::test]
async fn what_a_build_writes_into_its_image_is_gone_with_it() {
    let registry = Registry::start().await;
    let image = push(&registry, "users:1", Some("dev"), PASSWD);
    let plain = push(&registry, "users:2", None, PASSWD);
    let digest = |name: &str| {
        let config = json!({ "Env": ["PATH=/usr/bin:/bin"] });
        let manifest = registry.push(name, &[programs(&PROGRAMS)], &config);
        registry.image(&format!("{}@{manifest}", name.split(':').next().unwrap()))
    };
    let fixed = digest("fixed:1");
    let text = "ls /opt /etc/new 2>/dev/null; mkdir -p /opt/a/b && echo x > /opt/a/b/c && echo new > /etc/new && \
                cat /opt/a/b/c /etc/new; touch kept; sleep 1000 & exit 0";
    let look = "ls /opt /etc/new 2>/dev/null; touch /etc/new 2>/dev/null || echo read-only";
    for first in ["0", "41000"] {
        let farm = workers(&registry).env("FOREBAY_BUILD_UID", first).start().await;
        for image in [&image, &plain, &fixed] {
            // A warm workspace keeps files and processes, but nothing of the image.
            for _ in 0..2 {
                let writes = BuildRequest {
                    workspace: Some(WorkspaceUse::Warm),
                    ..build(&[("container-image", image), ("writable-root", "true")], text)
                };
                assert_eq!(printed(&farm, writes).await, "x\nnew\n", "{image} {first}");
            }
            let looks = build(&[("container-image", image)], look);
            assert_eq!(printed(&farm, looks).await, "read-only\n", "{image} {first}");
        }
    }
}

#[tokio::test]
async fn a_build_that_cannot_write_to_an_image_is_refused_at_once() {
    let registry = Registry::start().await;
    let image = push(&registry, "users:1", Some("dev"), PASSWD);
    let refused = async |farm: &Farm, requirements: &[(&str, &str)]| {
        let request = build(requirements, "true");
        farm.client().create(&"g".parse().unwrap(), &request, None).await.unwrap_err().to_string()
    };
    let farm = workers(&registry).start().await;
    let error = refused(&farm, &[("writable-root", "true")]).await;
    assert!(error.contains("writable-root needs an image"), "{error}");
    let without = workers(&registry).env("FOREBAY_IMAGES", "false").start().await;
    let error = refused(&without, &[("container-image", &image), ("writable-root", "true")]).await;
    assert!(error.contains("no worker has offered the property"), "{error}");
}

#[tokio::test]
async fn a_build_that_fills_its_image_is_stopped_at_its_memory() {
    let registry = Registry::start().await;
    let image = push(&registry, "users:1", Some("dev"), PASSWD);
    let farm = workers(&registry).start().await;
    let text = "i=0; while [ $i -lt 40 ]; do cat /bin/sh /bin/cat /bin/ls /usr/bin/id >> /opt/full || { echo full; exit 0; }; \
                i=$((i+1)); done; cat /opt/full /opt/full > /opt/twice || { echo full; exit 0; }; \
                while cat /opt/twice >> /opt/more; do :; done; echo full";
    let limits = model::BuildLimits { memory_bytes: Some(64 << 20), ..Default::default() };
    let writes = BuildRequest {
        limits,
        ..build(&[("container-image", &image), ("writable-root", "true")], &format!("mkdir /opt; {text}"))
    };
    let key = farm.submit("g", writes).await;
    let record = ended(&farm, &key).await;
    let result = record.result().unwrap();
    if result.outcome == Outcome::Succeeded {
        let said = farm.cli(&["logs", &key.to_string()]).await.stdout;
        assert!(said.contains("full"), "{said}");
    } else {
        let reason = result.reason.clone().unwrap();
        assert_eq!((result.outcome, reason.code), (Outcome::Failed, ReasonCode::OutOfMemory), "{reason:?}");
    }
    assert_eq!(printed(&farm, script("echo on")).await, "on\n");
}
