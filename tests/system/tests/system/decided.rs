//! Tables of who may do what, which people decide and tests compare with what servers really allow.

use std::collections::{BTreeMap, BTreeSet};

/// What each subject, stream or key allows to whom.
pub(crate) type Allowed = BTreeMap<String, BTreeSet<String>>;

/// Reads a table with one line `NAME ALLOWED…` each. A line that begins with `#` says why the lines below it are as they are.
fn parse(table: &str) -> Allowed {
    let lines = table.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let rows = lines.map(|line| {
        let mut words = line.split_whitespace().map(str::to_owned);
        (words.next().unwrap(), words.collect::<BTreeSet<String>>())
    });
    let mut all = Allowed::new();
    for (name, allowed) in rows {
        assert!(all.insert(name.clone(), allowed).is_none(), "{name} is decided twice");
    }
    all
}

/// Fails with a line for each row in which the servers differ from the table. `found` has rows without an entry, too: what
/// is allowed to no user is decided as well.
pub(crate) fn compare(file: &str, table: &str, found: &Allowed) {
    let decided = parse(table);
    let names: BTreeSet<&String> = decided.keys().chain(found.keys()).collect();
    let row = |name: &str, allowed: &BTreeSet<String>| {
        [name.to_owned()].into_iter().chain(allowed.iter().cloned()).collect::<Vec<_>>().join(" ")
    };
    let mut wrong = Vec::new();
    for name in names {
        match (decided.get(name), found.get(name)) {
            (Some(decided), Some(found)) if decided == found => {}
            (Some(_), Some(found)) => wrong.push(format!("! {}", row(name, found))),
            (None, Some(found)) => wrong.push(format!("+ {}", row(name, found))),
            (_, None) => wrong.push(format!("- {name}")),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} rows of {file} are not what the servers allow (!), not decided (+) or of the past (-):\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
