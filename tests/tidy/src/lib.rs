//! The source tree as text, for the checks in `tests/`.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test harness fails by panicking"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use toml::de::DeTable;

/// Folders that hold nothing of the project's own.
const NOT_OURS: [&str; 4] = [".git", ".tools", "target", "node_modules"];

/// A file of the tree.
#[derive(Debug)]
pub struct SourceFile {
    /// Its path from the root, with `/` between the parts.
    pub path: String,
    /// Its whole content, as UTF-8.
    pub text: String,
}

/// A crate of the workspace.
#[derive(Debug)]
pub struct Member {
    /// Its folder from the root.
    pub path: String,
    /// The name of the package.
    pub name: String,
    /// Packages that it depends on, without those of its tests.
    pub dependencies: BTreeSet<String>,
}

/// The root of the repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("tests/tidy lies two folders below the root").to_owned()
}

/// All files whose name ends with `.{extension}`, sorted by path.
pub fn files(extension: &str) -> Vec<SourceFile> {
    let mut found = Vec::new();
    collect(&root(), extension, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn collect(folder: &Path, extension: &str, found: &mut Vec<SourceFile>) {
    for entry in fs::read_dir(folder).expect("a folder of the tree").flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        // `file_type` of an entry does not follow links.
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && !NOT_OURS.contains(&name.as_str()) {
            collect(&path, extension, found);
        } else if kind.is_file() && path.extension().is_some_and(|it| it == extension) {
            let text =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let relative = path.strip_prefix(root()).expect("a path below the root");
            found.push(SourceFile { path: relative.to_string_lossy().into_owned(), text });
        }
    }
}

/// The crates of the workspace by name.
pub fn members() -> BTreeMap<String, Member> {
    let manifests = files("toml").into_iter().filter(|file| file.path.ends_with("/Cargo.toml"));
    let members = manifests.map(|file| {
        let manifest =
            DeTable::parse(&file.text).unwrap_or_else(|error| panic!("{}: {error}", file.path)).into_inner();
        let package = manifest.get("package").and_then(|it| it.get_ref().as_table()).expect("a package");
        let name = package.get("name").and_then(|it| it.get_ref().as_str()).expect("a name").to_owned();
        let dependencies = manifest.get("dependencies").and_then(|it| it.get_ref().as_table());
        let names = dependencies.into_iter().flat_map(|table| table.keys());
        let dependencies = names.map(|name| name.get_ref().to_string()).collect();
        let path = file.path.trim_end_matches("/Cargo.toml").to_owned();
        (name.clone(), Member { path, name, dependencies })
    });
    members.collect()
}

/// Comments of Rust code with the numbers of their lines, without the slashes.
pub fn comments(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(number, line)| {
        let comment = line.trim_start().strip_prefix("//")?;
        Some((number + 1, comment.trim_start_matches(['/', '!']).trim()))
    })
}

/// Doc comments of Rust code with the numbers of their lines, without the slashes.
pub fn doc_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(number, line)| {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
        Some((number + 1, doc.trim()))
    })
}

/// Whether `word` stands in `text` between characters that are not letters.
pub fn has_word(text: &str, word: &str) -> bool {
    let lower = text.to_lowercase();
    lower.match_indices(word).any(|(at, _)| {
        let before = lower.get(..at).and_then(|text| text.chars().next_back());
        let after = lower.get(at + word.len()..).and_then(|text| text.chars().next());
        !before.is_some_and(char::is_alphabetic) && !after.is_some_and(char::is_alphabetic)
    })
}
