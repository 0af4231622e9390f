//! Every setting is described where it is declared, and read by the code that it is for.

use tidy::files;

#[test]
fn every_setting_is_described_and_read() {
    let sources = files("rs");
    let declared = sources.iter().find(|file| file.path == "shared/settings/src/lib.rs").unwrap();
    let (_, body) = declared.text.split_once("pub struct Settings {").unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let (mut described, mut faults, mut count) = (false, Vec::new(), 0);
    for line in body.lines().map(str::trim) {
        if line.starts_with("///") {
            described = true;
        } else if let Some((name, _)) = line.strip_prefix("pub ").and_then(|field| field.split_once(':')) {
            count += 1;
            if !described {
                faults.push(format!("{name} is not described"));
            }
            let used = format!(".{name}");
            let reads =
                |text: &str| text.match_indices(&used).any(|(at, _)| !continues(text, at + used.len()));
            let product = |path: &str| !path.starts_with("tests/") && !path.starts_with("lab/");
            if !sources.iter().any(|file| product(&file.path) && reads(&file.text)) {
                faults.push(format!("{name} is not read"));
            }
            described = false;
        }
    }
    assert!(count > 50 && faults.is_empty(), "{count} settings: {}", faults.join(", "));
}

/// Whether the name goes on at `at`, so that it is another one.
fn continues(text: &str, at: usize) -> bool {
    text.get(at..).and_then(|rest| rest.chars().next()).is_some_and(|c| c.is_alphanumeric() || c == '_')
}
