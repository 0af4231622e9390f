//! Runs a target for its time.

use std::{
    env, fs,
    fs::File,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::{
    corpus::Corpus,
    mutate::{fill, mutate},
    outcome::{Fault, run},
    random::Random,
    resident::Resident,
    shrink::shrink,
};

/// Time of one target, if `FOREBAY_FUZZ_SECONDS` sets none: together they have about a minute on two processors.
const SECONDS: u64 = 4;
/// Maximum size of an input.
const BYTES_MAX: usize = 64 << 10;
/// Size of most inputs, if they are not made of a larger one; one of so many is as large as possible.
const SMALL_BYTES: usize = 1024;
const LARGE_EVERY: usize = 32;
/// Inputs after which the memory is looked at.
const MEMORY_EVERY: u64 = 256;

/// A parser of what others send.
pub struct Target<'a> {
    /// The name of its test.
    pub name: &'a str,
    /// Inputs that it takes, made by the encoders of the product.
    pub seeds: Vec<Vec<u8>>,
    /// What its format is made of.
    pub words: &'a [&'a [u8]],
    /// Parses an input and says what came of it. It panics if something is wrong that is not the fault of the input.
    pub check: &'a dyn Fn(&[u8]) -> String,
}

/// Changes inputs of a target until its time is over. Fails with an input that it does not take as it must.
pub fn fuzz(target: &Target<'_>) {
    if let Ok(text) = env::var("FOREBAY_FUZZ_INPUT") {
        let input =
            STANDARD.decode(text.trim()).unwrap_or_else(|error| panic!("FOREBAY_FUZZ_INPUT: {error}"));
        eprintln!("{}: {}", target.name, (target.check)(&input));
        return;
    }
    let seed = number("FOREBAY_FUZZ_SEED").unwrap_or(1);
    let time = Duration::from_secs(number("FOREBAY_FUZZ_SECONDS").unwrap_or(SECONDS));
    let mut session = Session::new(target, seed);
    let end = Instant::now() + time;
    for input in &target.seeds {
        session.give(input);
    }
    while Instant::now() < end {
        session.next();
    }
    eprintln!("{}: {} inputs, {} outcomes", target.name, session.inputs, session.corpus.outcomes());
    // The file stays if the process dies.
    let _ = fs::remove_file(&session.path);
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text:?}: {error}")))
}

struct Session<'a> {
    target: &'a Target<'a>,
    seed: u64,
    random: Random,
    corpus: Corpus,
    inputs: u64,
    memory: Resident,
    /// Has the input that is tried, for the case that it ends the process.
    file: File,
    path: PathBuf,
}

impl<'a> Session<'a> {
    fn new(target: &'a Target<'a>, seed: u64) -> Self {
        let path = env::temp_dir().join(format!("forebay-fuzz-{}-{}", target.name, std::process::id()));
        let file = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        eprintln!("{}: seed {seed}; the input that is tried is in {}", target.name, path.display());
        let corpus = Corpus::new(target.seeds.clone());
        let memory = Resident::now();
        Self { target, seed, random: Random::new(seed), corpus, inputs: 0, memory, file, path }
    }

    /// Makes an input and gives it to the target.
    fn next(&mut self) {
        let mut input = self.corpus.pick(&mut self.random).to_vec();
        let other = self.corpus.pick(&mut self.random);
        let words = self.target.words;
        if self.random.below(LARGE_EVERY) == 0 {
            fill(&mut input, &mut self.random, words, BYTES_MAX);
        } else {
            // Small inputs are tried faster.
            let most = SMALL_BYTES.max(input.len());
            mutate(&mut input, &mut self.random, other, words, most);
        }
        self.give(&input);
    }

    fn give(&mut self, input: &[u8]) {
        self.note(input);
        self.inputs += 1;
        match run(self.target.check, input) {
            Ok(outcome) => self.corpus.learn(input, &outcome, &mut self.random),
            Err(fault) => self.fail(input, &fault),
        }
        let is_greedy = self.inputs.is_multiple_of(MEMORY_EVERY) && self.memory.has_grown();
        assert!(
            !is_greedy,
            "{}: an input before {} (seed {}) needs too much memory",
            self.target.name, self.inputs, self.seed
        );
    }

    /// Writes the input down. The file cannot be complete after a failure of the disk, which is no fault of the target.
    fn note(&self, input: &[u8]) {
        let _ = self.file.set_len(0);
        let _ = self.file.write_all_at(input, 0);
    }

    fn fail(&self, input: &[u8], fault: &Fault) -> ! {
        let small = shrink(self.target.check, input.to_vec(), fault);
        let shown =
            String::from_utf8_lossy(small.get(..small.len().min(300)).unwrap_or_default()).into_owned();
        // The test itself fails as others do.
        drop(std::panic::take_hook());
        panic!(
            "{} (seed {}, input {}): {fault:?} with {} bytes: {shown:?}\nFOREBAY_FUZZ_INPUT={} repeats it",
            self.target.name,
            self.seed,
            self.inputs,
            small.len(),
            STANDARD.encode(&small)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_three_right_bytes_cause_is_found() {
        let check = |input: &[u8]| {
            let depth = input.iter().zip(b"bug").take_while(|(a, b)| a == b).count();
            assert!(depth < 3);
            // Each step is an outcome of its own.
            "x".repeat(depth)
        };
        let words: &[&[u8]] = &[b"b", b"u", b"g"];
        let target = Target { name: "engine", seeds: vec![b"seed".to_vec()], words, check: &check };
        // As many inputs on a slow machine as on a fast one.
        let tries = || {
            let mut session = Session::new(&target, 1);
            (0..1_000_000).for_each(|_| session.next());
        };
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(tries)).unwrap_err();
        let text = found.downcast_ref::<String>().unwrap();
        assert!(text.contains("3 bytes: \"bug\"") && text.contains("FOREBAY_FUZZ_INPUT=YnVn"), "{text}");
    }
}
