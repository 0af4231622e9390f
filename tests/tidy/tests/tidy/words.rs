//! Comments and documents are plain modern English, and every doc comment says something.

use tidy::{comments, doc_lines, files, has_word};

/// Words that engineers do not use today, and what to write instead.
const OLD: [(&str, &str); 7] = [
    ("whoever", "name the process or person"),
    ("nobody", "no client, no process"),
    ("likewise", "say it again"),
    ("anew", "again"),
    ("afar", "another machine"),
    ("lately", "recently, or a time"),
    ("hitherto", "so far"),
];
/// Words of a doc line at least; less is filler, or the end of a paragraph that can be wrapped better.
const WORDS_MIN: usize = 4;

#[test]
fn no_text_uses_words_of_another_century() {
    let mut found = Vec::new();
    for file in files("rs").iter().filter(|file| !file.path.starts_with("tests/tidy/")) {
        for (line, comment) in comments(&file.text) {
            found.extend(old_words(comment).map(|word| format!("{}:{line}: {word}", file.path)));
        }
    }
    for file in files("md").iter().filter(|file| file.path != "CHANGELOG.md") {
        for (line, text) in file.text.lines().enumerate() {
            found.extend(old_words(text).map(|word| format!("{}:{}: {word}", file.path, line + 1)));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn old_words(text: &str) -> impl Iterator<Item = String> {
    // Names in backticks are not prose.
    let prose: String = text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    let used = OLD.iter().filter(move |(word, _)| has_word(&prose, word));
    used.map(|(word, better)| format!("{word:?}: {better}"))
}

#[test]
fn doc_comments_say_something() {
    let mut found = Vec::new();
    for file in files("rs") {
        let mut in_code = false;
        for (line, doc) in doc_lines(&file.text) {
            in_code ^= doc.starts_with("```");
            let is_prose = !in_code && !doc.is_empty() && !doc.starts_with(['#', '`', '|']);
            if is_prose && doc.split_whitespace().count() < WORDS_MIN {
                found.push(format!("{}:{line}: {doc}", file.path));
            }
        }
    }
    assert!(
        found.is_empty(),
        "{} doc lines of less than {WORDS_MIN} words:\n{}",
        found.len(),
        found.join("\n")
    );
}
