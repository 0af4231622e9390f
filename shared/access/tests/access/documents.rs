//! The document names each role, and which of them use Redis.

use access::Role;

#[test]
fn the_table_of_roles_is_that_of_the_code() {
    let text = std::fs::read_to_string(farm::repository().join("docs/security.md")).unwrap();
    let (_, text) = text.split_once("## Roles").unwrap();
    let (table, _) = text.split_once("## ").unwrap();
    let mut rows: Vec<(String, bool)> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|line| (line.split('`').next().unwrap().to_owned(), line.trim_end().ends_with("| yes |")))
        .collect();
    let mut wanted: Vec<(String, bool)> =
        Role::ALL.iter().map(|role| (role.to_string(), role.uses_redis())).collect();
    rows.sort();
    wanted.sort();
    assert_eq!(rows, wanted);
}
