//! Bazel with its actions in a container image, from a real registry.

use std::{fs, path::Path, process::Command};

use e2e_tests::{Bazel, Place, Rig, Version, everything};
use farm::{Port, Process, repository};

use crate::scenarios::SOON;

/// Where Debian's compiler keeps its own headers, by version: Bazel knows those of this machine.
const VERSIONED: [&str; 3] = ["gcc/x86_64-linux-gnu/", "include/c++/", "x86_64-linux-gnu/c++/"];

/// A `docker-registry` with the image `tools:1`.
struct Registry {
    address: String,
    _process: Process,
    _port: Port,
}

impl Registry {
    async fn start(place: &Place, layout: &Path) -> Self {
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
        e2e_tests::until("the registry listens", SOON, listens).await;
        let copied = Command::new("skopeo")
            .arg("--policy")
            .arg(folder.join("policy.json"))
            .args(["copy", "--quiet", "--dest-tls-verify=false"])
            .arg(format!("oci:{}:latest", layout.display()))
            .arg(format!("docker://{address}/tools:1"))
            .output()
            .unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        Self { address, _process: process, _port: port }
    }
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
    let layout = repository().join(".tools/images/gcc-11");
    if !everything() {
        return;
    }
    if !layout.join("index.json").is_file() {
        eprintln!("skipped: infra/tools/image.sh has not made the image");
        return;
    }
    let place = Place::new();
    let registry = Registry::start(&place, &layout).await;
    let setting = serde_json::json!({ &registry.address: { "plain_http": true } }).to_string();
    let rig = Rig::start(&place, &[("FOREBAY_REGISTRIES", &setting)]).await;
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
