//! Bazel inside the sandbox of builds.

use std::time::Duration;

use e2e_tests::{Version, everything};
use farm::{Farm, repository};
use model::{BuildId, BuildRequest, Context, Outcome};

const LIMIT: Duration = Duration::from_secs(280);

/// Builds bzip2 by a Bazel that runs in a build on the farm, with these options.
async fn builds(farm: &Farm, options: &str) {
    let program = Version::Four.find().unwrap();
    // Bazel takes no blanks in the path of a repository: copies have none.
    let script = format!(
        "set -e; mkdir project; tar -xzf \"$SOURCES/bzip2.tar.gz\" -C project; cp -R \"$SHIMS\" shims
         cp \"$BZIP2\"/* project/; touch project/WORKSPACE; cd project
         \"$BAZEL\" --batch --output_user_root=\"$TMPDIR/bazel\" build {options} {overrides} --verbose_failures //:all",
        overrides = ["rules_cc", "rules_java", "remote_coverage_tools"]
            .map(|name| format!("--override_repository={name}=\"${{PWD%/*}}/shims/{name}\""))
            .join(" "),
    );
    let paths = [
        ("SOURCES", repository().join(".tools/sources")),
        ("SHIMS", repository().join("tests/e2e/shims")),
        ("BZIP2", repository().join("tests/e2e/workspaces/bzip2")),
        ("BAZEL", program),
    ];
    let request = BuildRequest {
        id: Some(BuildId::generate()),
        command: vec!["/bin/sh".into(), "-c".into(), script],
        context: Context::Empty,
        env: paths.map(|(name, path)| (name.to_owned(), path.display().to_string())).into(),
        ..BuildRequest::default()
    };
    let key = farm.submit("g", request).await;
    let record = farm.wait_finished(&key, LIMIT).await;
    let log = farm.cli(&["logs", &key.to_string(), "--tail", "40"]).await;
    let log = format!("{}{}", log.stdout, log.stderr);
    assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{options}: {record:#?}\n{log}");
}

#[tokio::test]
async fn bazel_builds_inside_the_sandbox_with_its_own_sandbox_on_and_off() {
    let read_only = serde_json::json!([repository().join(".tools"), repository().join("tests/e2e")]);
    let farm = |filter: &str| {
        Farm::builder()
            .without("gateway")
            .workspaces(1)
            .env("FOREBAY_BUILD_SANDBOX", "bubblewrap")
            .env("FOREBAY_SANDBOX_READ_ONLY", read_only.to_string())
            .env("FOREBAY_SANDBOX_FILTER", filter)
    };
    let filtered = farm("true").start().await;
    // Bazel chooses: its linux-sandbox is refused, and it notices that.
    builds(&filtered, "").await;
    if everything() {
        builds(&filtered, "--spawn_strategy=local").await;
        let unfiltered = farm("false").start().await;
        builds(&unfiltered, "").await;
    }
}
