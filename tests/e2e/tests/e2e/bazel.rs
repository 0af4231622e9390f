//! More projects, another Bazel, other settings.

use std::{fs, path::Path, time::Duration};

use e2e_tests::{Bazel, HIT, Place, Rig, Version, everything};

use crate::scenarios::{
    actions_tell, builds_and_tests, downloads_little, interrupt_stops_actions, tests_fail, word,
};

async fn start(project: &str, version: Version, env: &[(&str, &str)]) -> (Bazel, Rig, Place) {
    let place = Place::new();
    let rig = Rig::start(&place, env).await;
    (Bazel::new(&place, project, version), rig, place)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zlib() {
    if everything() {
        let (bazel, rig, _place) = start("zlib", Version::Four, &[]).await;
        let local = builds_and_tests(&bazel, &rig).await;
        assert!(local.spawns.len() >= 119, "{local}");
        downloads_little(&bazel, &rig, "minigzip", "//:gz0_1").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lua() {
    if everything() {
        let (bazel, rig, _place) = start("lua", Version::Four, &[]).await;
        let local = builds_and_tests(&bazel, &rig).await;
        assert!(local.spawns.len() >= 111, "{local}");
        downloads_little(&bazel, &rig, "luac", "//:fib_bc").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bzip2_with_an_old_bazel() {
    if !everything() {
        return;
    }
    if Version::Two.find().is_none() {
        eprintln!("skipped: Bazel 2.1.0 is not installed");
        return;
    }
    let (bazel, rig, _place) = start("bzip2", Version::Two, &[]).await;
    builds_and_tests(&bazel, &rig).await;
    tests_fail(&bazel, &rig).await;
    interrupt_stops_actions(&bazel, &rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_sandbox() {
    if everything() {
        let (bazel, rig, _place) = start("bzip2", Version::Four, &[("FOREBAY_SANDBOX", "none")]).await;
        builds_and_tests(&bazel, &rig).await;
        tests_fail(&bazel, &rig).await;
        actions_tell(&bazel, &rig).await;
        interrupt_stops_actions(&bazel, &rig).await;
    }
}

/// Bazel runs the actions locally and stores their results on the farm; another Bazel finds them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_cache() {
    if !everything() {
        return;
    }
    let (bazel, rig, _place) = start("bzip2", Version::Four, &[]).await;
    let cache = format!("--remote_cache={}", rig.grpc());
    let first = bazel.local("build", &[&cache, "//:all"]).await.ok();
    assert_eq!(first.runners().get(HIT), None, "{first}");
    bazel.clean().await;
    let again = bazel.local("build", &[&cache, "//:all"]).await.ok();
    again.assert_all_hits(first.spawns.len());
    assert_eq!(again.hashes(), first.hashes());
    // Local results are hits for a remote build, and the other way round.
    let other = Place::new();
    let other_bazel = Bazel::new(&other, "bzip2", Version::Four);
    let there = other_bazel.remote(&rig, "build", &["//:all"]).await.ok();
    there.assert_none_local();
    assert_eq!(there.hashes(), first.hashes());
}

/// A second machine, with its own folders, finds everything that the first one built.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_machines_share() {
    if !everything() {
        return;
    }
    let (bazel, rig, _place) = start("bzip2", Version::Four, &[]).await;
    let other = Place::new();
    let other_bazel = Bazel::new(&other, "bzip2", Version::Four);
    let first = bazel.remote(&rig, "test", &["//:all"]).await.ok();
    let second = other_bazel.remote(&rig, "test", &["//:all"]).await.ok();
    second.assert_all_hits(first.spawns.len());
    // Both at once, without any cached action.
    let fresh = format!("--copt=-DFRESH={}", word(""));
    let args = [fresh.as_str(), "//:all"];
    let (one, two) = tokio::join!(bazel.remote(&rig, "test", &args), other_bazel.remote(&rig, "test", &args));
    let (one, two) = (one.ok(), two.ok());
    assert_eq!(one.hashes(), two.hashes());
}

/// Options with which a user gives the farm more information: known ones are accepted, unknown ones are
/// refused with a reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options() {
    if !everything() {
        return;
    }
    let (bazel, rig, _place) = start("bzip2", Version::Four, &[]).await;
    let known = [
        "--remote_execution_priority=5",
        "--remote_result_cache_priority=1",
        "--remote_default_exec_properties=OSFamily=linux",
        "--experimental_remote_execution_keepalive",
        "--remote_header=x-anything=something",
        "//:bz2",
    ];
    let run = bazel.remote(&rig, "build", &known).await.ok();
    run.assert_none_local();
    let paths = "--incompatible_remote_output_paths_relative_to_input_root";
    bazel.remote(&rig, "build", &[paths, "--copt=-DPATHS", "//:bzip2"]).await.ok().assert_none_local();
    let run = bazel.remote(&rig, "build", &["--remote_instance_name=no/such/instance", "//:bz2"]).await;
    assert_ne!(run.code, 0, "{run}");
    run.assert_says("no/such/instance");
    let property = "--remote_default_exec_properties=gpu=nine";
    let run = bazel.remote(&rig, "build", &[property, "//:bz2"]).await;
    assert_ne!(run.code, 0, "{run}");
    run.assert_says("gpu");
}

/// The store is small, its retention promise is short, and another client fills it constantly: builds that download
/// nothing are not affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eviction_under_a_build() {
    if !everything() {
        return;
    }
    let env = [("FOREBAY_CAS_BYTES_MAX", "100000000"), ("FOREBAY_CAS_KEEP_SECONDS", "20")];
    let (bazel, rig, place) = start("bzip2", Version::Four, &env).await;
    let written = || fs::read_dir(place.path().join("filler")).map_or(0, Iterator::count);
    let builds = async {
        for round in 0..100 {
            if round >= 12 && written() > 150 {
                break;
            }
            // Each round compiles again, after the outputs of the previous round were left on the farm.
            let fresh = format!("--copt=-DROUND={round}");
            let args = ["--remote_download_minimal", fresh.as_str()];
            let build = bazel.remote(&rig, "build", &[&args[..], &["//:bzip2"]].concat()).await.ok();
            build.assert_none_local();
            let test = bazel.remote(&rig, "test", &[&args[..], &["//:all"]].concat()).await.ok();
            test.assert_none_local();
        }
    };
    tokio::select! {
        () = builds => {}
        () = fill(&rig, place.path()) => unreachable!("there is always another number"),
    }
    println!("{} MB went through a store of 100 MB", written());
    assert!(written() > 150, "only {} MB: nothing had to go", written());
}

/// Uploads a new megabyte repeatedly; less in the retention time of a blob than the store holds.
async fn fill(rig: &Rig, folder: &Path) {
    let folder = folder.join("filler");
    fs::create_dir_all(&folder).unwrap();
    for number in 0_u64.. {
        let file = folder.join(number.to_string());
        let bytes: Vec<u8> =
            (0..125_000_u64).flat_map(|word| (word ^ (number << 32)).to_le_bytes()).collect();
        fs::write(&file, bytes).unwrap();
        let put = rig.up().cli(&["cas", "put", file.to_str().unwrap()]).await;
        // The store may be full of blobs within their retention time: then it must refuse.
        assert!(put.code == 0 || put.stderr.contains("full"), "{put:?}");
        fs::write(&file, []).unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}
