//! The tables of attacks in the documents name tests that exist.

use std::collections::BTreeSet;

use tidy::{files, root};

/// The documents, the letters of their attacks, and their numbers.
const TABLES: [(&str, &str, usize); 7] = [
    ("docs/sandboxes.md", "S", 19),
    ("docs/contexts.md", "C", 7),
    ("docs/security.md", "N", 16),
    ("docs/security.md", "O", 5),
    ("docs/security.md", "G", 18),
    ("docs/security.md", "H", 9),
    ("docs/security.md", "B", 4),
];

#[test]
fn each_attack_has_a_test_that_exists() {
    let sources = files("rs");
    for (document, letter, attacks) in TABLES {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        let (table, _) = text.split_once("A test cannot show these").unwrap_or((&text, ""));
        let mut rows = BTreeSet::new();
        for line in table.lines().filter(|line| line.starts_with(&format!("| {letter}"))) {
            let id = line.trim_start_matches("| ").split(' ').next().unwrap_or_default();
            let last = line.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
            let tests: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
            let own = format!("{}_", id.to_lowercase());
            assert!(tests.iter().any(|name| name.starts_with(&own)), "{id} has no test with its name");
            for name in tests {
                let declared = format!("fn {name}(");
                let exists = sources.iter().any(|file| file.text.contains(&declared));
                assert!(exists, "{document}: the test {name} does not exist");
            }
            assert!(rows.insert(id.to_owned()), "{id} has two rows");
        }
        assert_eq!(rows.len(), attacks, "{document}: {rows:?}");
    }
}
