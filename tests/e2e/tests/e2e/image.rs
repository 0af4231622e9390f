//! Container images from a real registry: actions of Bazel in one, and a database beside tests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use e2e_tests::{Bazel, Place, Rig, Version, everything, processes_with_word, until};
use farm::{Port, Process, repository};

use crate::scenarios::SOON;

/// Where Debian's compiler keeps its own headers, by version: Bazel knows those of this machine.
const VERSIONED: [&str; 3] = ["gcc/x86_64-linux-gnu/", "include/c++/", "x86_64-linux-gnu/c++/"];

/// A `docker-registry` with one image.
struct Registry {
    address: String,
    _process: Process,
    _port: Port,
}

impl Registry {
    /// Serves the image of this layout as `name`.
    async fn start(place: &Place, layout: &Path, name: &str) -> Self {
        let folder = place.folder("registry");
        let port = Port::reserve();
        let address = format!("127.0.0.1:{}", port.number());
        let config = format!(
            "version: 0.1\nstorage: {{ filesystem: {{ rootdirectory: {} }} }}\nhttp: {{ addr: {address} }}\n",
            folder.join("data").display()
        );
        fs::write(folder.join("config.yml"), config).unwrap();
        let mut command = tokio::process::Command::new("docker-registry");
        command.arg("serve").arg(folder.join("config.yml"));
        let process = Process::start("docker-registry", command, &folder.join("log"), place.guard());
        fs::write(folder.join("policy.json"), r#"{"default":[{"type":"insecureAcceptAnything"}]}"#).unwrap();
        let listens = || std::net::TcpStream::connect(&address).is_ok();
        until("the registry listens", SOON, listens).await;
        let copied = Command::new("skopeo")
            .arg("--policy")
            .arg(folder.join("policy.json"))
            .args(["copy", "--quiet", "--dest-tls-verify=false"])
            .arg(format!("oci:{}:latest", layout.display()))
            .arg(format!("docker://{address}/{name}"))
            .output()
            .unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        Self { address, _process: process, _port: port }
    }

    /// The setting with which a farm reads from it.
    fn setting(&self) -> String {
        serde_json::json!({ &self.address: { "plain_http": true } }).to_string()
    }
}

/// An image that `make e2e` has made.
fn layout(name: &str) -> Option<PathBuf> {
    let layout = repository().join(".tools/images").join(name);
    if everything() && !layout.join("index.json").is_file() {
        eprintln!("skipped: infra/tools/image.sh has not made the image {name}");
    }
    Some(layout).filter(|layout| everything() && layout.join("index.json").is_file())
}

/// The toolchain that Bazel found on this machine, with the headers of the compiler in the image.
fn toolchain(bazel: &Bazel, place: &Place) -> String {
    let found = bazel.base().join("external/local_config_cc");
    let folder = place.folder("toolchain");
    let copied = Command::new("cp").arg("-RL").arg(found.join(".")).arg(&folder).status().unwrap();
    assert!(copied.success());
    for file in ["BUILD", "builtin_include_directory_paths"] {
        let path = folder.join(file);
        let mut text = fs::read_to_string(&path).unwrap();
        for prefix in VERSIONED {
            for version in ["10", "12", "13", "14"] {
                text = text.replace(&format!("{prefix}{version}"), &format!("{prefix}11"));
            }
        }
        fs::write(path, text).unwrap();
    }
    format!("--override_repository=local_config_cc={}", folder.display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zlib_is_built_by_the_compiler_of_an_image() {
    let Some(layout) = layout("gcc-11") else { return };
    let place = Place::new();
    let registry = Registry::start(&place, &layout, "tools:1").await;
    let rig = Rig::start(&place, &[("FOREBAY_REGISTRIES", &registry.setting())]).await;
    let bazel = Bazel::new(&place, "zlib", Version::Four);
    // Bazel looks for the compiler of this machine.
    let _looked = bazel.local("build", &["--nobuild", "//:minigzip"]).await.ok();
    let toolchain = toolchain(&bazel, &place);
    let image =
        format!("--remote_default_exec_properties=container-image=docker://{}/tools:1", registry.address);
    let args = [toolchain.as_str(), image.as_str(), "//:all"];
    let first = bazel.remote(&rig, "test", &args).await.ok();
    first.assert_none_local();
    bazel.clean().await;
    let again = bazel.remote(&rig, "test", &args).await.ok();
    again.assert_all_hits(first.spawns.len());
    assert_eq!(again.hashes(), first.hashes());
    let hashes = first.hashes();
    let program = hashes.keys().find(|path| path.ends_with("bin/minigzip")).unwrap();
    let program = first.execution_root.join(program);
    let said = Command::new("readelf").args(["-p", ".comment"]).arg(&program).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("GCC: (Debian 11"), "{said}");
}

/// Databases, and tests that use them, at once.
const DATABASES: usize = 8;
/// A word on the command line of each database, and of no process of another run of the tests.
fn word() -> String {
    format!("cluster_name=forebay-e2e-{:07}", std::process::id())
}

/// Whether this machine can make images, and the test is wanted.
fn has_tools() -> bool {
    let has = |tool: &str| Path::new("/usr/bin").join(tool).is_file();
    let has_all = ["bwrap", "mmdebstrap", "skopeo", "umoci"].into_iter().all(has);
    if everything() && !has_all {
        eprintln!("skipped: infra/tools/image.sh has not installed what makes images");
    }
    everything() && has_all
}

/// Lets the farm make an environment with PostgreSQL, and reads it as from a registry.
async fn make_postgres(place: &Place, rig: &Rig) {
    let folder = place.folder("postgres");
    let file = folder.join("postgres.yaml");
    let definition = "debian: bookworm\npackages: [postgresql-15]\nrun: [psql --version]\n\
                      env: { PATH: \"/usr/lib/postgresql/15/bin:/usr/bin:/bin\" }\n";
    fs::write(&file, definition).unwrap();
    let added = rig.up().cli(&["env", "add", "postgres", "--file", file.to_str().unwrap()]).await;
    assert_eq!(added.code, 0, "{added:?}");
    let approved = rig.up().cli(&["env", "approve", "postgres"]).await;
    assert_eq!(approved.code, 0, "{approved:?}");
    let made = tokio::time::timeout(Duration::from_secs(600), async {
        loop {
            let listed = rig.up().cli(&["env", "list", "postgres"]).await.stdout;
            if listed.contains("ready") || listed.contains("failed") {
                return listed;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    let made = made.await.unwrap();
    assert!(made.contains("ready, current"), "{made}");
    fs::write(folder.join("policy.json"), r#"{"default":[{"type":"insecureAcceptAnything"}]}"#).unwrap();
    let http = rig.up().read_endpoints().unwrap().http.unwrap();
    let address = http.trim_start_matches("http://");
    let pulled = Command::new("skopeo")
        .arg("--policy")
        .arg(folder.join("policy.json"))
        .args(["copy", "--quiet", "--src-tls-verify=false"])
        .arg(format!("docker://{address}/postgres:latest"))
        .arg(format!("oci:{}:latest", folder.join("pulled").display()))
        .output()
        .unwrap();
    assert!(pulled.status.success(), "{}", String::from_utf8_lossy(&pulled.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tests_have_a_database_each_on_the_same_port() {
    if !has_tools() {
        return;
    }
    let place = Place::new();
    let slots = DATABASES.to_string();
    let settings = [("FOREBAY_BUILD_ENVIRONMENTS", "true"), ("FOREBAY_EXECUTOR_SLOTS", slots.as_str())];
    let rig = Rig::start(&place, &settings).await;
    make_postgres(&place, &rig).await;
    let word = word();
    let start = format!("initdb -D data -U test >/dev/null && exec postgres -D data -k /tmp -c {word}");
    let database = serde_json::json!({
        "name": "db", "environment": "postgres", "command": ["sh", "-c", start],
        "ready": {"command": ["pg_isready", "--quiet", "--host", "localhost"]},
    });
    // All wait for each other in the test, outside of their databases.
    let query = "create table t (n int); insert into t values (NUMBER); select pg_sleep(3); select sum(n) * 10 from t";
    let task = |number: usize| {
        let query = query.replace("NUMBER", &number.to_string());
        let script = format!(
            "psql --host db --username test postgres --quiet --tuples-only --command '{query}' | tail -2"
        );
        serde_json::json!({
            "id": format!("test-{number}"), "command": ["sh", "-c", script], "cache": false,
            "platform": {"env": "postgres"}, "services": [database],
        })
    };
    let job = serde_json::json!({"tasks": (0..DATABASES).map(task).collect::<Vec<_>>()});
    let file = place.folder("job").join("job.json");
    fs::write(&file, job.to_string()).unwrap();
    let args = ["submit", "--follow", "--job", file.to_str().unwrap()];
    let all_run = until("all databases run", Duration::from_secs(100), || {
        processes_with_word(&word).len() >= DATABASES
    });
    let (ended, _) = tokio::join!(rig.up().cli(&args), all_run);
    assert_eq!(ended.code, 0, "{ended:?}");
    for number in 0..DATABASES {
        assert!(ended.stdout.contains(&format!(" {}\n", number * 10)), "{number}: {ended:?}");
    }
    until("no database is left", SOON, || processes_with_word(&word).is_empty()).await;
}
