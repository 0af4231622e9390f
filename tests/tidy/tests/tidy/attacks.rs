//! The table of attacks in the documents names tests that exist.

use std::collections::BTreeSet;

use tidy::{files, root};

/// Number of attacks in the table.
const ATTACKS: usize = 17;

#[test]
fn each_attack_has_a_test_that_exists() {
    let text = std::fs::read_to_string(root().join("docs/sandboxes.md")).unwrap();
    let (table, _) = text.split_once("A test cannot show these").unwrap();
    let sources = files("rs");
    let mut rows = BTreeSet::new();
    for line in table.lines().filter(|line| line.starts_with("| S")) {
        let id = line.trim_start_matches("| ").split(' ').next().unwrap_or_default();
        let last = line.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        let tests: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        let own = format!("{}_", id.to_lowercase());
        assert!(tests.iter().any(|name| name.starts_with(&own)), "{id} has no test with its name");
        for name in tests {
            let declared = format!("async fn {name}(");
            let exists = sources.iter().any(|file| file.text.contains(&declared));
            assert!(exists, "docs/sandboxes.md: the test {name} does not exist");
        }
        assert!(rows.insert(id.to_owned()), "{id} has two rows");
    }
    assert_eq!(rows.len(), ATTACKS, "{rows:?}");
}
