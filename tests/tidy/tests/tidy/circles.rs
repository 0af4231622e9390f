//! No two files of a crate import from each other, directly or through other files.

use std::collections::{BTreeMap, BTreeSet};

use tidy::{files, members};

/// The place of a file in the tree of its crate's modules. Empty for the root of the crate.
type Module = Vec<String>;

/// A file of a crate that is not only for tests.
struct Source {
    /// Its path, for messages.
    path: String,
    /// Its text without comments and without its tests.
    code: String,
}

/// All files of one crate.
type Sources = BTreeMap<Module, Source>;

/// What the definition of an item begins with, just before its name.
const DEFINING: [&str; 7] = ["struct", "enum", "fn", "trait", "const", "type", "static"];

#[test]
fn no_files_import_from_each_other() {
    let files = files("rs");
    let mut found = Vec::new();
    for member in members().values() {
        let folder = format!("{}/src/", member.path);
        let sources = files.iter().filter_map(|file| {
            let module = module(file.path.strip_prefix(&folder)?)?;
            Some((module, Source { path: file.path.clone(), code: code(&file.text) }))
        });
        found.extend(circles(&sources.collect()).into_iter().map(|circle| circle.join("\n  ")));
    }
    assert!(
        found.is_empty(),
        "{} circles of files that import from each other; move what they share to a file of its own:\n- {}",
        found.len(),
        found.join("\n- ")
    );
}

/// The module of a file at `path` below `src`. `None` if it is only for tests.
fn module(path: &str) -> Option<Module> {
    let mut parts: Vec<&str> = path.strip_suffix(".rs")?.split('/').collect();
    if parts.iter().any(|part| *part == "tests" || part.ends_with("_tests")) {
        return None;
    }
    if matches!(parts.last(), Some(&("lib" | "main" | "mod"))) {
        parts.pop();
    }
    Some(parts.into_iter().map(ToOwned::to_owned).collect())
}

fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The files of each circle, in the order of their modules.
fn circles(sources: &Sources) -> Vec<Vec<&str>> {
    let imports: BTreeMap<&Module, BTreeSet<&Module>> =
        sources.keys().map(|own| (own, imported(own, sources))).collect();
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        sources.keys().map(|own| (own, reached(own, &imports))).collect();
    let leads_to = |from: &Module, to: &Module| reached.get(from).is_some_and(|found| found.contains(to));
    let mut circles = BTreeSet::new();
    for own in sources.keys() {
        let circle = sources.iter().filter(|(other, _)| leads_to(own, other) && leads_to(other, own));
        circles.insert(circle.map(|(_, source)| source.path.as_str()).collect::<Vec<_>>());
    }
    circles.into_iter().filter(|circle| !circle.is_empty()).collect()
}

/// All modules that `own` imports from, directly or through others. Contains `own` if it is in a circle.
fn reached<'a>(
    own: &'a Module,
    imports: &BTreeMap<&'a Module, BTreeSet<&'a Module>>,
) -> BTreeSet<&'a Module> {
    let mut found = BTreeSet::new();
    let mut next = vec![own];
    while let Some(module) = next.pop() {
        let new = imports.get(module).into_iter().flatten().filter(|to| found.insert(**to));
        next.extend(new.copied());
    }
    found
}

/// The modules that `own` imports from. Its own submodules count only if their path starts with a keyword.
fn imported<'a>(own: &Module, sources: &'a Sources) -> BTreeSet<&'a Module> {
    let Some(source) = sources.get(own) else { return BTreeSet::new() };
    let (used, rest) = uses(&source.code);
    let named = rest.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    let named = named.filter(|path| path.starts_with("crate::") || path.starts_with("super::"));
    let used = used.iter().map(String::as_str);
    let used = used.filter(|path| ["crate::", "self::", "super::"].iter().any(|it| path.starts_with(it)));
    let targets = used.chain(named).filter_map(|path| target(path, own, sources));
    targets.filter(|module| *module != own).collect()
}

/// The paths of all `use` declarations, and the code without these declarations.
fn uses(code: &str) -> (Vec<String>, String) {
    let (mut paths, mut rest) = (Vec::new(), String::new());
    for statement in code.split(';') {
        let (before, tree) = split_use(statement);
        rest.push_str(before);
        rest.push(';');
        paths.extend(tree.into_iter().flat_map(expand));
    }
    (paths, rest)
}

/// Splits a statement before the keyword `use` at the start of a line. Returns the tree of names after it.
fn split_use(statement: &str) -> (&str, Option<&str>) {
    let mut at = 0;
    for line in statement.split_inclusive('\n') {
        let item = line.trim_start();
        let public = item.strip_prefix("pub").map(|item| match item.strip_prefix('(') {
            Some(scope) => scope.split_once(')').map_or(scope, |(_, item)| item),
            None => item,
        });
        let item = public.unwrap_or(item).trim_start();
        if item.starts_with("use ") {
            let (before, tree) = statement.split_at(at + line.len() - item.len());
            return (before, tree.strip_prefix("use "));
        }
        at += line.len();
    }
    (statement, None)
}

/// The paths in a tree of names: `a::{b, c::D}` has `a::b` and `a::c::D`.
fn expand(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((prefix, names)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![path.trim().to_owned()];
    };
    let mut depth = 0_u32;
    let names = names.strip_suffix('}').unwrap_or(names).split(|c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    let names = names.filter(|name| !name.trim().is_empty());
    names.flat_map(expand).map(|name| format!("{prefix}{name}")).collect()
}

/// The module that `path`, as `own` writes it, leads to. For a name that the root of the crate only re-exports, it is
/// the module that the root has it from.
fn target<'a>(path: &str, own: &Module, sources: &'a Sources) -> Option<&'a Module> {
    let mut names = path.split("::").map(|name| name.trim_matches([':', ' ', '\n'])).peekable();
    let mut start = own.clone();
    while let Some(name) = names.next_if(|name| ["crate", "self", "super"].contains(name)) {
        match name {
            "crate" => start.clear(),
            "super" => {
                start.pop();
            }
            _ => {}
        }
    }
    let first = names.peek().copied();
    let module = deepest(start, names, sources)?;
    if !module.is_empty() {
        return Some(module);
    }
    let (name, root) = (first?, sources.get(module)?);
    let (used, _) = uses(&root.code);
    let exported = used.iter().find(|path| path.rsplit("::").next() == Some(name));
    if let Some(path) = exported {
        let names = path.split("::").skip_while(|name| ["crate", "self"].contains(name));
        return deepest(Module::new(), names, sources).filter(|module| !module.is_empty());
    }
    let words = root.code.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.collect();
    let is_defined =
        words.windows(2).any(|pair| matches!(pair, [it, of] if DEFINING.contains(it) && *of == name));
    is_defined.then_some(module)
}

/// The last module on the way from `start` along `names`.
fn deepest<'a, 'n>(
    mut start: Module,
    names: impl Iterator<Item = &'n str>,
    sources: &'a Sources,
) -> Option<&'a Module> {
    let mut found = sources.get_key_value(&start);
    for name in names {
        start.push(name.to_owned());
        let Some(next) = sources.get_key_value(&start) else { break };
        found = Some(next);
    }
    found.map(|(module, _)| module)
}

fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let sources = files.iter().filter_map(|(path, text)| {
        Some((module(path)?, Source { path: (*path).to_owned(), code: code(text) }))
    });
    circles(&sources.collect()).into_iter().map(|circle| circle.join(" ")).collect()
}

#[test]
fn circles_of_any_length_are_found() {
    let two =
        [("lib.rs", "mod a;\nmod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "use super::a::{self, A};")];
    assert_eq!(circles_of(&two), ["a.rs b.rs"]);
    let three = [
        ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;"),
        ("a/mod.rs", "pub(crate) use crate::{\n    b::{B, C},\n    d,\n};"),
        ("b.rs", "fn f() -> crate::c::C {}"),
        ("c.rs", "use std::fmt;\n\nuse crate::a::A as Other;"),
        ("d.rs", ""),
    ];
    assert_eq!(circles_of(&three), ["a/mod.rs b.rs c.rs"]);
    let other = [("x.rs", "use crate::y::Y;"), ("y.rs", "use crate::x::X;")];
    assert_eq!(circles_of(&[two.as_slice(), other.as_slice()].concat()), ["a.rs b.rs", "x.rs y.rs"]);
}

#[test]
fn the_root_counts_only_for_what_it_defines() {
    let root = "mod a;\nmod b;\n\npub use crate::{a::A, b::B};\n\nuse crate::a::open;\n\npub struct Both;";
    let exported = [("lib.rs", root), ("a.rs", "use crate::B;"), ("b.rs", "")];
    assert_eq!(circles_of(&exported), [""; 0]);
    let through_the_root = [("lib.rs", root), ("a.rs", "use crate::B;"), ("b.rs", "use crate::A;")];
    assert_eq!(circles_of(&through_the_root), ["a.rs b.rs"]);
    let of_the_root = [("lib.rs", root), ("a.rs", "use crate::Both;"), ("b.rs", "")];
    assert_eq!(circles_of(&of_the_root), ["lib.rs a.rs"]);
}

#[test]
fn comments_and_tests_import_nothing() {
    let test = "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}";
    let comment = "//! See [`crate::a`].";
    for text in [test, comment] {
        let files = [("a.rs", "use crate::b::B;"), ("b.rs", text), ("b/tests.rs", "use crate::a::A;")];
        assert_eq!(circles_of(&files), [""; 0], "{text}");
    }
}
