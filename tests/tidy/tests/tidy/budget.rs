//! What the tree weighs, compared with `budget.toml`. `.ci/run` checks the limits that need a build or a run.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use serde::Deserialize;
use tidy::{SourceFile, files, root};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    limit: usize,
    checked_by: String,
    reason: String,
}

#[derive(Deserialize)]
struct Budgets {
    /// Messages and commands of a build or an action, by case and figure.
    counts: BTreeMap<String, BTreeMap<String, f64>>,
    #[serde(flatten)]
    others: BTreeMap<String, Budget>,
}

fn budgets() -> Budgets {
    let text = std::fs::read_to_string(root().join("tests/tidy/budget.toml")).unwrap();
    toml::from_str(&text).unwrap()
}

fn assert_within(name: &str, measured: usize) {
    let budget = budgets().others.remove(name).unwrap();
    let Budget { limit, reason, .. } = budget;
    assert!(measured > limit / 2, "{name}: {measured} are so few that the measurement or the limit is wrong");
    assert!(measured <= limit, "{name}: {measured} are more than the budget of {limit} ({reason})");
}

/// A package as `cargo tree` names it, and the features that it is compiled with.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Compiled {
    package: String,
    features: String,
}

/// The packages of registries that these arguments of `cargo tree` select.
fn compiled(arguments: &[&str]) -> BTreeSet<Compiled> {
    let tree = ["tree", "--locked", "--offline", "--prefix", "none", "--format", "{p}|{f}"];
    let output = Command::new(env!("CARGO")).args(tree).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once('|'));
    // Repeated lines end with a mark, and packages of the workspace have their folder in the name.
    let lines = lines.map(|(package, features)| (package, features.trim_end_matches(" (*)")));
    let lines = lines.filter(|(package, _)| !package.contains("(/"));
    lines
        .map(|(package, features)| Compiled { package: package.to_owned(), features: features.to_owned() })
        .collect()
}

fn of_the_binary() -> BTreeSet<Compiled> {
    compiled(&["--package", "forebay", "--edges", "normal,build"])
}

#[test]
fn the_binary_needs_few_crates_of_registries() {
    let packages: BTreeSet<String> = of_the_binary().into_iter().map(|compiled| compiled.package).collect();
    assert_within("registry_crates", packages.len());
}

/// Otherwise `cargo build --workspace`, the tests and lint compile crates again that `make demo` has compiled.
#[test]
fn the_binary_and_the_tests_compile_crates_with_the_same_features() {
    let all = compiled(&["--workspace", "--edges", "normal,build,dev"]);
    let binary = of_the_binary();
    let packages: BTreeSet<&str> = binary.iter().map(|compiled| compiled.package.as_str()).collect();
    let others: Vec<&Compiled> = all
        .iter()
        .filter(|compiled| packages.contains(compiled.package.as_str()) && !binary.contains(compiled))
        .collect();
    assert!(
        others.is_empty(),
        "the workspace compiles these again, with other features than the binary: name the features in Cargo.toml, or \
         leave out what turns them on: {others:#?}"
    );
}

#[test]
fn the_product_is_short() {
    let is_product = |file: &&SourceFile| {
        let path = &file.path;
        let product = ["services/", "shared/", "jetstream/"].iter().any(|folder| path.starts_with(folder));
        let test = path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs");
        product && path.contains("/src/") && !test
    };
    assert_within(
        "product_lines",
        files("rs").iter().filter(is_product).map(|file| file.text.lines().count()).sum(),
    );
}

#[test]
fn the_documents_are_short() {
    let words = files("md").iter().map(|file| file.text.split_whitespace().count()).sum();
    assert_within("document_words", words);
}

#[test]
fn the_changelog_names_each_limit() {
    let changelog = std::fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let named = |name: &str, limit: String| {
        let line = format!("`{name}` {limit}");
        assert!(
            changelog.contains(&line),
            "CHANGELOG.md does not contain \"{line}\": add a line with the reason"
        );
    };
    let budgets = budgets();
    for (name, Budget { limit, checked_by, reason }) in &budgets.others {
        named(name, limit.to_string());
        assert!(!checked_by.is_empty() && !reason.is_empty(), "{name} needs checked_by and reason");
    }
    for (case, counts) in &budgets.counts {
        for (figure, limit) in counts {
            named(&format!("{case}.{figure}"), limit.to_string());
        }
    }
}
