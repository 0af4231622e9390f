//! Every setting is described where it is declared, and read by the code that it is for.

use tidy::{SourceFile, files};

const DECLARED: &str = "shared/settings/src/lib.rs";
/// A check of a value does not count as a use.
const CHECKED: &str = "shared/settings/src/check.rs";
const PARTS: &str = "shared/settings/src/parts/";

#[test]
fn every_setting_is_described_and_read() {
    let sources = files("rs");
    let declared = sources.iter().find(|file| file.path == DECLARED).unwrap();
    let (_, body) = declared.text.split_once("pub struct Settings {").unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let (mut described, mut faults, mut count) = (false, Vec::new(), 0);
    for line in body.lines().map(str::trim) {
        if line.starts_with("///") {
            described = true;
        } else if let Some(name) = field(line) {
            count += 1;
            if !described {
                faults.push(format!("{name} is not described"));
            }
            if !is_read(name, &sources, |path| path != CHECKED) {
                faults.push(format!("{name} is not read"));
            }
            described = false;
        }
    }
    assert!(count > 50 && faults.is_empty(), "{count} settings: {}", faults.join(", "));
}

#[test]
fn every_field_of_a_part_is_read_by_its_consumer() {
    let sources = files("rs");
    let (mut faults, mut count) = (Vec::new(), 0);
    for part in sources.iter().filter(|file| file.path.starts_with(PARTS)) {
        for name in part.text.lines().filter_map(|line| field(line.trim())) {
            count += 1;
            if !is_read(name, &sources, |path| !path.starts_with("shared/settings/")) {
                faults.push(format!("{name} of {} is not read", part.path));
            }
        }
    }
    assert!(count > 50 && faults.is_empty(), "{count} fields: {}", faults.join(", "));
}

/// The name of the public field that a line declares.
fn field(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix("pub ")?.split_once(": ")?;
    (!name.contains([' ', '('])).then_some(name)
}

/// Whether the product's code in one of these files reads the field.
fn is_read(name: &str, sources: &[SourceFile], within: impl Fn(&str) -> bool) -> bool {
    let used = format!(".{name}");
    let reads = |text: &str| text.match_indices(&used).any(|(at, _)| !continues(text, at + used.len()));
    let product = |path: &str| !path.starts_with("tests/") && !path.starts_with("lab/");
    sources.iter().any(|file| product(&file.path) && within(&file.path) && reads(&file.text))
}

/// Whether the name goes on at `at`, so that it is another one.
fn continues(text: &str, at: usize) -> bool {
    text.get(at..).and_then(|rest| rest.chars().next()).is_some_and(|c| c.is_alphanumeric() || c == '_')
}
