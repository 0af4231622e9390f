//! Output of commands: frames in the store, and what hides secrets in it.

use console_log::{Raw, Run, pack, unpack};
use fuzz_tests::{Target, fuzz};
use model::OutputStream;
use occupancy::OccupancyModel;
use secrets::{Masker, Masks, Secret};

use crate::choice::{Reader, outcome, read, seed};

const SECRET: &str = "hunter2-correct-horse";
const WORDS: &[&[u8]] = &[
    b"hunter2",
    b"-correct",
    b"-horse",
    b"hunter2-correct-horse",
    b"\n",
    b"\r",
    b"%2D",
    b"aHVudGVyMi1jb3JyZWN0LWhvcnNl",
    b"68756e74657232",
    b"\x28\xb5\x2f\xfd",
    b"\x5f\x2a\x4d\x18",
    b"\xff\xff\xff\xff",
];

/// A frame that is accepted is the same when it is packed and read again.
fn frame(input: &[u8]) -> String {
    let raw = match unpack(input) {
        Err(error) => return error.to_string(),
        Ok(raw) => raw,
    };
    assert_eq!(unpack(&pack(&raw).unwrap()).unwrap(), raw);
    format!("{} runs", raw.runs.len().min(5))
}

/// No secret is left, wherever the output is cut into pieces.
fn masked(input: &[u8]) -> String {
    let secret = Secret::new(SECRET.into()).unwrap();
    let masks = Masks::new([&secret]).unwrap();
    let whole = {
        let mut masker = Masker::new(&masks);
        [masker.push(input), masker.finish()].concat()
    };
    let mut masker = Masker::new(&masks);
    let mut pieces: Vec<u8> = input.chunks(7).flat_map(|piece| masker.push(piece)).collect();
    pieces.extend(masker.finish());
    let found = |text: &[u8]| text.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
    assert!(!found(&whole) && !found(&pieces), "a secret is shown");
    assert_eq!(whole, pieces, "pieces are masked in another way");
    (whole == input).to_string()
}

fn model(input: &[u8]) -> String {
    outcome(OccupancyModel::decode(input))
}

#[test]
fn output_is_refused_or_shown_without_secrets() {
    let readers: [Reader; 3] = [frame, masked, model];
    let runs =
        vec![Run { stream: OutputStream::Stdout, bytes: 3 }, Run { stream: OutputStream::Stderr, bytes: 2 }];
    let raw = Raw { data: b"outer".into(), runs, stdout_offset: 5, stderr_offset: 9 };
    let text = format!("token={SECRET}\nagain {SECRET}{SECRET} aHVudGVyMi1jb3JyZWN0LWhvcnNl");
    let seeds = vec![seed(0, pack(&raw).unwrap()), seed(1, text), seed(2, b"FOREBAY")];
    fuzz(&Target { name: "console", seeds, words: WORDS, check: &|input| read(&readers, input) });
}
