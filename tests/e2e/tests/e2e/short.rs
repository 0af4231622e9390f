//! Bazel against a farm with default settings: one farm and one Bazel server for all scenarios.

use e2e_tests::{Bazel, Place, Rig, Version};

use crate::scenarios::{
    actions_tell, build_survives, builds_and_tests, downloads_little, interrupt_stops_actions, tests_fail,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bazel_finds_the_farm_right() {
    let place = Place::new();
    let rig = Rig::start(&place, &[]).await;
    let bazel = Bazel::new(&place, "bzip2", Version::Four);
    builds_and_tests(&bazel, &rig).await;
    downloads_little(&bazel, &rig, "bzip2", "//:c1").await;
    tests_fail(&bazel, &rig).await;
    actions_tell(&bazel, &rig).await;
    interrupt_stops_actions(&bazel, &rig).await;
    build_survives(&bazel, &rig, &["executor"]).await;
}
