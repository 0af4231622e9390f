//! Tables and paths in the documents are those of the tree.

use tidy::{files, members, root};

/// First parts of paths that are checked.
const FOLDERS: [&str; 7] = ["services/", "shared/", "lab/", "tests/", "jetstream/", "infra/", "docs/"];

#[test]
fn the_table_of_crates_names_every_crate() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
    for member in members().values() {
        let named = table.iter().any(|line| line.contains(&format!("`{}`", member.path)));
        assert!(named, "ARCHITECTURE.md has no row for {}", member.path);
    }
}

#[test]
fn paths_in_the_documents_exist() {
    let mut missing = Vec::new();
    for file in files("md").iter().filter(|file| file.path != "CHANGELOG.md") {
        for (number, line) in file.text.lines().enumerate() {
            for path in line.split('`').skip(1).step_by(2).filter(|text| is_path(text)) {
                for path in expand(path) {
                    if !root().join(&path).exists() {
                        missing.push(format!("{}:{}: {path}", file.path, number + 1));
                    }
                }
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

fn is_path(text: &str) -> bool {
    FOLDERS.iter().any(|folder| text.starts_with(folder)) && !text.contains(['*', ' ', '<', '$', ':'])
}

/// `a/{b,c}.rs` names two files.
fn expand(path: &str) -> Vec<String> {
    let braces = path.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?)));
    match braces {
        Some((head, (names, tail))) => names.split(',').map(|name| format!("{head}{name}{tail}")).collect(),
        None => vec![path.to_owned()],
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut missing = Vec::new();
    for file in files("md") {
        let folder = root().join(&file.path).parent().unwrap().to_owned();
        for (number, line) in file.text.lines().enumerate() {
            for rest in line.split("](").skip(1) {
                let target = rest.split([')', '#']).next().unwrap_or_default();
                if !target.is_empty() && !target.contains("://") && !folder.join(target).exists() {
                    missing.push(format!("{}:{}: {target}", file.path, number + 1));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
