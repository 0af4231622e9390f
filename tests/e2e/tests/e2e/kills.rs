//! Sends `kill -9` in the middle of a build.

use e2e_tests::{Bazel, Place, Rig, Version, everything};

use crate::scenarios::build_survives;

/// Kills these in turn during a build without cached actions, one per build, then all in one build.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bazel_survives_the_death_of_any_service() {
    if !everything() {
        return;
    }
    let place = Place::new();
    let rig = Rig::start(&place, &[]).await;
    let bazel = Bazel::new(&place, "bzip2", Version::Four);
    let services = ["gateway", "scheduler", "executor", "cas"];
    for service in services {
        build_survives(&bazel, &rig, &[service]).await;
    }
    build_survives(&bazel, &rig, &services).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bazel_survives_the_death_of_a_server() {
    if !everything() {
        return;
    }
    let place = Place::new();
    let rig = Rig::start(&place, &[]).await;
    let bazel = Bazel::new(&place, "bzip2", Version::Four);
    for server in ["redis-server", "nats-server"] {
        build_survives(&bazel, &rig, &[server]).await;
    }
}
