//! Marks that make systems for continuous integration fold the output of a build.

use farm::{Farm, Output};

use crate::terminal::Terminal;

/// Prints an incomplete last line.
const PRINTS: [&str; 4] = ["--", "printf", "%s", "a\nb"];

/// Follows a build where `variable` is set.
async fn follow(farm: &Farm, variable: &str, args: &[&str]) -> Output {
    let mut command = farm.command(&[&["submit", "--follow"], args].concat());
    command.env(variable, "true");
    Output::of(command).await
}

#[tokio::test]
async fn github_groups_the_output_and_names_the_failure() {
    let farm = Farm::builder().without("gateway").start().await;
    let output = follow(&farm, "GITHUB_ACTIONS", &PRINTS).await;
    let (head, rest) = output.stdout.split_once('\n').unwrap();
    assert!(head.starts_with("::group::build default/") && head.contains("attempt 1 of"), "{output:?}");
    assert_eq!((rest, output.code), ("a\nb\n::endgroup::\n", 0), "{output:?}");

    let output = follow(&farm, "GITHUB_ACTIONS", &["--", "no-such%0Aprogram"]).await;
    let last: Vec<&str> = output.stdout.lines().rev().take(2).collect();
    assert_eq!((last[1], output.code), ("::endgroup::", 1), "{output:?}");
    let error = last[0].strip_prefix("::error title=build default/").unwrap();
    assert!(error.contains("::FINISHED failed") && error.contains("no-such%250Aprogram"), "{error}");
}

#[tokio::test]
async fn gitlab_and_buildkite_get_sections() {
    let farm = Farm::builder().without("gateway").start().await;
    let output = follow(&farm, "GITLAB_CI", &PRINTS).await;
    let start = output.stdout.strip_prefix("\u{1b}[0Ksection_start:").unwrap();
    let (start, rest) = start.split_once("[collapsed=true]\r\u{1b}[0Kbuild default/").unwrap();
    let (seconds, name) = start.split_once(':').unwrap();
    assert!(seconds.parse::<u64>().unwrap() > 1_700_000_000, "{output:?}");
    let (_, rest) = rest.split_once('\n').unwrap();
    let end = rest.strip_prefix("a\nb\n\u{1b}[0Ksection_end:").unwrap();
    assert!(end.ends_with(&format!(":{name}\r\u{1b}[0K\n")), "{output:?}");

    let output = follow(&farm, "BUILDKITE", &PRINTS).await;
    let (head, rest) = output.stdout.split_once('\n').unwrap();
    assert!(head.starts_with("--- build default/") && rest == "a\nb", "{output:?}");
    let output = follow(&farm, "BUILDKITE", &["--", "sh", "-c", "echo bad; exit 1"]).await;
    assert!(output.stdout.ends_with("\nbad\n^^^ +++\n"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_is_folded_for_those_systems_only() {
    let farm = Farm::builder().without("gateway").env("GITHUB_ACTIONS", "true").start().await;
    let output = follow(&farm, "GITHUB_ACTIONS", &[&["--fold", "never"], &PRINTS[..]].concat()).await;
    assert_eq!(output.stdout, "a\nb");
    let output = follow(&farm, "CI", &[&["--fold", "gitlab"], &PRINTS[..]].concat()).await;
    assert!(output.stdout.contains("section_start:") && !output.stdout.contains("::group::"), "{output:?}");
    let output = follow(&farm, "GITHUB_ACTIONS", &[&["--json"], &PRINTS[..]].concat()).await;
    assert!(output.stdout.lines().all(|line| line.starts_with('{')), "{output:?}");
    let terminal = Terminal::start(&farm, (100, 24), &["submit", "--follow", "--", "echo", "hello"]);
    let text = terminal.ended(0).await;
    assert!(text.contains("\nhello\n") && !text.contains("::"), "{text}");
    let mut command = farm.command(&[&["submit", "--follow"], &PRINTS[..]].concat());
    command.env_remove("GITHUB_ACTIONS");
    assert_eq!(Output::of(command).await.stdout, "a\nb");
}
