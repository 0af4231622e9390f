use std::process::{Command, Stdio};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use proptest::prelude::*;

use super::*;
use crate::{Secret, spellings::spellings};

fn secret(value: &str) -> Secret {
    Secret::new(value.into()).unwrap()
}

fn masks(values: &[&str]) -> Arc<Masks> {
    let secrets: Vec<Secret> = values.iter().map(|value| secret(value)).collect();
    Masks::new(&secrets).unwrap()
}

fn masked(masks: &Arc<Masks>, text: &str) -> String {
    masks.mask(text).into_owned()
}

/// The output for these chunks, after the end of the stream.
fn whole<'a>(masks: &Arc<Masks>, chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut masker = Masker::new(masks);
    let mut out: Vec<u8> = chunks.into_iter().flat_map(|chunk| masker.push(chunk)).collect();
    out.extend(masker.finish());
    out
}

#[test]
fn a_secret_is_masked_and_the_rest_stays() {
    let masks = masks(&["hunter22"]);
    assert_eq!(masked(&masks, "login with hunter22!"), "login with ***!");
    assert_eq!(masked(&masks, "hunter22hunter22 hunter2 x"), "*** hunter2 x");
    assert_eq!(masked(&masks, "hunter2hunter22"), "hunter2***");
    assert_eq!(masked(&masks, "nothing"), "nothing");
    assert_eq!(masked(&masks, "hun\r\nter\n22\nnext"), "***\n***\n***\nnext", "cut lines");
}

#[test]
fn what_programs_make_of_a_secret_is_masked() {
    let value = "p@ss word/+?'\"\\1";
    let masks = masks(&[value]);
    for (text, left) in [
        (STANDARD.encode(value), ""),
        ("7040737320776f72642f2b3f27225c31".to_owned(), ""),
        (format!("https://h/?q={}&x", "p%40ss%20word%2F%2B%3F%27%22%5C1"), "https://h/?q=***&x"),
        ("p%40ss+word%2f%2b%3f%27%22%5c1".to_owned(), ""),
        ("p%40ss%20word%2F%2B%3F'%22%5C1".to_owned(), ""),
        ("{\"k\":\"p@ss word/+?'\\\"\\\\1\"}".to_owned(), "{\"k\":\"***\"}"),
        ("'p@ss word/+?'\\''\"\\1'".to_owned(), "'***'"),
    ] {
        let wanted = if left.is_empty() { "***" } else { left };
        assert_eq!(masked(&masks, &text), wanted, "{text}");
    }
}

#[test]
fn base64_is_masked_wherever_the_secret_is_in_the_encoded_text() {
    let value = "s3cr3t-t0k3n?>~\u{fc}";
    let masks = masks(&[value]);
    for before in ["", "a", "ab", "abc", "user:", "Authorization: x:"] {
        for after in ["", "\n", "xy", "xyz and more"] {
            let text = STANDARD.encode(format!("{before}{value}{after}"));
            for text in [text.clone(), text.replace('+', "-").replace('/', "_"), text.replace('=', "")] {
                let shown = masked(&masks, &text);
                // At most the characters that depend on what is around it.
                let left: usize = shown.split("***").map(str::len).sum();
                let around = (before.len() * 8).div_ceil(6) + (after.len() * 8).div_ceil(6) + 4;
                assert!(shown.contains("***") && left <= around, "{text}: {shown}");
            }
        }
    }
}

#[test]
fn the_usual_programs_cannot_print_it_by_accident() {
    let value =
        "correct horse battery staple & 3 more words to make lines of some length, with ümlauts; 0123456789";
    let masks = masks(&[value]);
    for script in [
        "printf %s \"$S\" | base64",
        "printf 'user:%s' \"$S\" | base64",
        "echo \"$S\" | base64 -w 20",
        "printf %s \"$S\" | od -An -v -tx1 | tr -d ' '",
        "printf %s \"$S\" | fold -w 7",
        "set -x; true \"$S\"",
        "env",
    ] {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("({script}) 2>&1")]).env("S", value).stderr(Stdio::inherit());
        let output = shell.output().unwrap();
        let shown = String::from_utf8(whole(&masks, [output.stdout.as_slice()])).unwrap();
        assert!(!masks.finds(shown.as_bytes()) && shown.contains("***"), "{script}: {shown}");
        assert!(masks.finds(&output.stdout), "{script}");
    }
}

#[test]
fn each_long_line_of_a_secret_is_masked() {
    let key = "-----BEGIN KEY-----\r\nMIIabcdefgh\r\n  0123456789\r\nshort\r\n-----END KEY-----\r\n";
    let masks = masks(&[key]);
    assert_eq!(masked(&masks, "x MIIabcdefgh y"), "x *** y");
    assert_eq!(masked(&masks, "x 0123456789 short"), "x *** short");
    assert_eq!(masked(&masks, &format!("a\n{key}b")), "a\n***\n***\n***\n***\n***\r\nb");
}

#[test]
fn a_prompt_does_not_wait_and_a_long_beginning_of_a_secret_does() {
    let masks = masks(&["opensesame"]);
    let mut masker = Masker::new(&masks);
    assert_eq!(masker.push(b"Continue? o"), b"Continue? ");
    assert!(masker.holds());
    assert_eq!(masker.pause(), b"o");
    assert!(!masker.holds());
    assert_eq!(masker.push(b"pensesame."), b"***.", "the rest is still masked");
    assert_eq!(masker.push(b"open"), b"");
    assert_eq!(masker.pause(), b"");
    assert_eq!(masker.push(b" door"), b"open door");
    assert_eq!(masker.push(b"opensesam"), b"");
    assert_eq!(masker.finish(), b"***", "the program was killed while it printed");
    assert_eq!(masker.push(b"e op"), b"e ", "a new stream");
    assert_eq!(masker.finish(), b"op");
}

#[test]
fn output_without_anything_like_a_secret_is_not_held() {
    let masks = masks(&["opensesame"]);
    let mut masker = Masker::new(&masks);
    assert_eq!(masker.push(b"12345 67890\n"), b"12345 67890\n");
    assert!(!masker.holds());
}

#[test]
fn too_much_to_mask_is_refused() {
    let large = Secret::new(vec![b'x'; crate::SECRET_BYTES_MAX]).unwrap();
    let small = secret("abcd");
    assert!(Masks::new([&large]).is_ok());
    let refused = Masks::new([&large, &small]).err().unwrap().to_string();
    assert!(refused.contains("together"), "{refused}");
}

/// What must come out for `text`, found the slow way.
fn expected(secrets: &[Secret], text: &[u8]) -> Vec<u8> {
    let searched: Vec<usize> = (0..text.len()).filter(|at| !is_skipped(text[*at])).collect();
    let plain: Vec<u8> = searched.iter().map(|at| text[*at]).collect();
    let mut is_secret = vec![false; text.len()];
    let all = spellings(secrets);
    for spelling in &all {
        for at in 0..plain.len() {
            if plain[at..].starts_with(spelling) {
                is_secret[searched[at]..=searched[at + spelling.len() - 1]].fill(true);
            }
        }
    }
    let begins = |at: &usize| all.iter().any(|spelling| spelling.starts_with(&plain[*at..]));
    if let Some(tail) = (0..plain.len()).find(begins) {
        let undecided = searched[tail..].iter().filter(|at| !is_secret[**at]).count();
        if undecided >= SECRET_BYTES_MIN {
            is_secret[searched[tail]..=*searched.last().unwrap()].fill(true);
        }
    }
    let mut out = Vec::new();
    for at in 0..text.len() {
        let is_inside = at > 0 && is_secret[at - 1];
        match (is_secret[at], is_inside, text[at]) {
            (true, false, _) => out.extend_from_slice(b"***"),
            (true, true, b'\n') => out.extend_from_slice(b"\n***"),
            (true, true, _) => {}
            (false, _, byte) => out.push(byte),
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_cut_of_any_output_gives_the_same_and_no_secret(
        values in prop::collection::vec("[ab]{4,7}|[a-c\n]{2}[ab]{4}[a-c\n]{9}", 1..4),
        pieces in prop::collection::vec(("[abc\n\r]{0,5}", any::<prop::sample::Index>(), 0..9_usize), 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let secrets: Vec<Secret> = values.iter().map(|value| secret(value)).collect();
        let masks = Masks::new(&secrets).unwrap();
        let all = spellings(&secrets);
        let mut text = Vec::new();
        for (other, which, less) in pieces {
            text.extend_from_slice(other.as_bytes());
            let spelling = which.get(&all);
            text.extend_from_slice(&spelling[..spelling.len().saturating_sub(less)]);
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let chunks = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]);
        let cut = whole(&masks, chunks);
        prop_assert_eq!(&cut, &expected(&secrets, &text));
        prop_assert_eq!(&cut, &whole(&masks, [text.as_slice()]));
        prop_assert!(!masks.finds(&cut));
        // Pauses show less than the shortest secret of what is undecided.
        let mut masker = Masker::new(&masks);
        let mut paused = Vec::new();
        for byte in &text {
            paused.extend(masker.push(&[*byte]));
            paused.extend(masker.pause());
        }
        paused.extend(masker.finish());
        prop_assert!(!masks.finds(&paused));
    }
}
