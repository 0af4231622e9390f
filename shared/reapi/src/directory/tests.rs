use proptest::prelude::*;

use super::*;
use crate::{
    canonical::sort_directory,
    digest::to_proto,
    execution::{DirectoryNode, FileNode, SymlinkNode},
};

fn a_digest() -> execution::Digest {
    to_proto(&DigestFunction::Sha256.digest(b"content"))
}

fn file(name: &str) -> FileNode {
    FileNode { name: name.into(), digest: Some(a_digest()), ..FileNode::default() }
}

fn folder(name: &str) -> DirectoryNode {
    DirectoryNode { name: name.into(), digest: Some(a_digest()) }
}

fn link(name: &str, target: &str) -> SymlinkNode {
    SymlinkNode { name: name.into(), target: target.into(), node_properties: None }
}

fn files(names: &[&str]) -> Directory {
    Directory { files: names.iter().copied().map(file).collect(), ..Directory::default() }
}

#[test]
fn names_that_are_paths_are_refused() {
    let long = "x".repeat(NAME_MAX + 1);
    for bad in ["", ".", "..", "a/b", "/", "/etc", "../x", "a\0b", &long] {
        let in_each = [
            files(&[bad]),
            Directory { directories: vec![folder(bad)], ..Directory::default() },
            Directory { symlinks: vec![link(bad, "x")], ..Directory::default() },
        ];
        for directory in in_each {
            assert!(matches!(check(&directory), Err(DirectoryFault::Name { .. })), "{bad:?}");
        }
    }
    check(&files(&["...", ".hidden", "a b", "ü"])).unwrap();
}

#[test]
fn order_and_duplicates() {
    assert!(matches!(check(&files(&["b", "a"])), Err(DirectoryFault::Order { .. })));
    assert!(matches!(check(&files(&["a", "a"])), Err(DirectoryFault::Duplicate { .. })));
    let across = [
        Directory { directories: vec![folder("b")], ..files(&["a", "b"]) },
        Directory { symlinks: vec![link("a", "x")], ..files(&["a", "b"]) },
        Directory { symlinks: vec![link("c", "x")], directories: vec![folder("c")], ..files(&["a"]) },
    ];
    for directory in across {
        assert!(matches!(check(&directory), Err(DirectoryFault::Duplicate { .. })), "{directory:?}");
    }
    // Names that differ only in case are different.
    check(&files(&["Foo", "foo"])).unwrap();
}

#[test]
fn digests_and_targets() {
    let mut directory = files(&["a"]);
    directory.files[0].digest = None;
    assert!(matches!(check(&directory), Err(DirectoryFault::Digest { .. })));
    let bad = execution::Digest { hash: "AB".into(), size_bytes: 1 };
    let node = DirectoryNode { name: "d".into(), digest: Some(bad) };
    let directory = Directory { directories: vec![node], ..Directory::default() };
    assert!(matches!(check(&directory), Err(DirectoryFault::Digest { .. })));
    for (target, refused, allowed) in
        [("/etc/passwd", true, false), ("", true, true), ("a\0", true, true), ("../x", false, false)]
    {
        let directory = Directory { symlinks: vec![link("l", target)], ..Directory::default() };
        assert_eq!(check(&directory).is_err(), refused, "{target:?}");
        assert_eq!(check_with(&directory, AbsoluteTargets::Allowed).is_err(), allowed, "{target:?}");
    }
}

proptest! {
    #[test]
    fn sorted_distinct_names_pass_and_any_swap_fails(
        names in proptest::collection::btree_set("[a-zA-Z0-9._-]{1,12}", 2..40),
        kinds in proptest::collection::vec(0..3u8, 40),
        swap in any::<prop::sample::Index>(),
    ) {
        let mut directory = Directory::default();
        for (name, kind) in names.iter().filter(|name| check_name(name).is_ok()).zip(kinds) {
            match kind {
                0 => directory.files.push(file(name)),
                1 => directory.directories.push(folder(name)),
                _ => directory.symlinks.push(link(name, "x")),
            }
        }
        prop_assert_eq!(check(&directory), Ok(()));
        let mut sorted = directory.clone();
        sort_directory(&mut sorted);
        prop_assert_eq!(&sorted, &directory);
        if directory.files.len() > 1 {
            let at = swap.index(directory.files.len() - 1);
            directory.files.swap(at, at + 1);
            let is_order = matches!(check(&directory), Err(DirectoryFault::Order { .. }));
            prop_assert!(is_order);
        }
    }

    #[test]
    fn a_name_in_two_lists_is_found(
        names in proptest::collection::btree_set("[a-z]{1,6}", 1..30),
        chosen in any::<prop::sample::Index>(),
    ) {
        let names: Vec<String> = names.into_iter().collect();
        let twice = &names[chosen.index(names.len())];
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let directory = Directory { symlinks: vec![link(twice, "x")], ..files(&all) };
        prop_assert_eq!(check(&directory), Err(DirectoryFault::Duplicate { name: twice.clone() }));
    }
}
