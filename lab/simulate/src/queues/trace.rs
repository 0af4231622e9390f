//! Streams as text: one JSON object per line.

use std::collections::BTreeMap;

use model::Priority;
use policy::queue::UNKNOWN_ESTIMATE_MS;
use replay::{Interner, Job, Stream};
use serde::{Deserialize, Serialize, de::IgnoredAny};

use super::{errors::imprecise_ms, name::Reading};
use crate::{random, statistics::whole};

/// Maximum of any time in a stream, in milliseconds: 300 years.
const LONGEST_MS: f64 = 1e13;

/// One line as it is read.
#[derive(Debug, Deserialize)]
struct Line {
    arrival_ms: f64,
    duration_ms: f64,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    requirements: BTreeMap<String, Value>,
    #[serde(default)]
    priority: Priority,
    /// Estimate of an imprecise estimator. If absent it is drawn, unless the line records a build,
    /// whose estimate was unknown.
    #[serde(default)]
    estimate_ms: Option<f64>,
    /// Present in recorded builds only.
    #[serde(default)]
    waited_ms: Option<IgnoredAny>,
    #[serde(default)]
    outcome: Option<IgnoredAny>,
}

/// One line as it is written: in whole milliseconds.
#[derive(Debug, Serialize)]
struct WrittenLine<'a> {
    arrival_ms: u64,
    duration_ms: u64,
    #[serde(rename = "type")]
    kind: &'a str,
    requirements: &'a BTreeMap<String, String>,
    priority: Priority,
    estimate_ms: u64,
}

/// A requested value: `threads` may be a number.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Number(u64),
}

/// Reason why a stream cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTrace {
    #[error("line {line}: {problem}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        problem: String,
    },
    #[error("the stream has no jobs: expected one JSON object per line, with arrival_ms and duration_ms")]
    Empty,
}

/// A stream as read from a file. Estimates that the file does not contain are drawn for each seed separately.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// The stream. An estimate that is still to be drawn is 0 here.
    pub stream: Stream,
    /// Whether each job's estimate is still to be drawn.
    drawn: Vec<bool>,
}

impl Trace {
    /// Reads a stream without workers. Fractions of milliseconds are rounded; unknown fields are ignored. A
    /// recorded build (a line with `waited_ms` or `outcome`) without `estimate_ms` gets the estimate that the
    /// dispatcher uses for it: [`UNKNOWN_ESTIMATE_MS`].
    pub fn read(name: &str, text: &str) -> Result<Self, InvalidTrace> {
        let mut trace =
            Self { stream: Stream { name: name.to_owned(), ..Stream::default() }, ..Self::default() };
        let stream = &mut trace.stream;
        let (mut kinds, mut requirements) = (Interner::default(), Interner::default());
        let mut before = 0;
        for (line, text) in numbered_lines(text) {
            let wrong = |problem: String| InvalidTrace::Line { line, problem };
            let read: Line = serde_json::from_str(text).map_err(|error| wrong(problem(&error)))?;
            let time = |name: &str, value: f64| whole_time(name, value).map_err(wrong);
            let estimate_ms = read.estimate_ms.map(|given| time("estimate_ms", given)).transpose()?;
            let unknown = read.is_recorded().then_some(UNKNOWN_ESTIMATE_MS);
            let arrival_ms = time("arrival_ms", read.arrival_ms)?;
            if arrival_ms < before {
                return Err(wrong(format!(
                    "arrival_ms is {arrival_ms}, but the previous job arrived at {before}; sort the jobs by arrival"
                )));
            }
            before = arrival_ms;
            let duration_ms = time("duration_ms", read.duration_ms)?;
            let asked = read.requirements.into_iter().map(|(name, value)| (name, value.text()));
            let known = estimate_ms.or(unknown);
            stream.jobs.push(Job {
                arrival_ms,
                duration_ms,
                estimate_ms: known.unwrap_or_default(),
                priority: read.priority,
                requirements: requirements.number(&asked.collect(), &mut stream.requirements),
                kind: kinds.number(&read.kind, &mut stream.kinds),
            });
            trace.drawn.push(known.is_none());
        }
        if trace.drawn.is_empty() { Err(InvalidTrace::Empty) } else { Ok(trace) }
    }

    /// Returns the stream for `seed`, with missing estimates drawn according to `seed` and `reading`.
    pub fn for_seed(&self, seed: u64, reading: Reading) -> Stream {
        let mut stream = self.stream.clone();
        let mut errors = random::stream(seed, &stream.name, "estimate");
        for (job, is_drawn) in stream.jobs.iter_mut().zip(&self.drawn) {
            // One draw per job, so that the draws of other jobs do not depend on whether this line has an estimate.
            let estimate_ms = imprecise_ms(job.duration_ms, &mut errors, reading);
            if *is_drawn {
                job.estimate_ms = estimate_ms;
            }
        }
        stream
    }
}

/// Reads a stream for one seed: see [`Trace`].
pub fn read_trace(name: &str, text: &str, seed: u64, reading: Reading) -> Result<Stream, InvalidTrace> {
    Trace::read(name, text).map(|trace| trace.for_seed(seed, reading))
}

/// The lines of a text that are not blank, with their numbers from 1.
pub(crate) fn numbered_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty())
}

impl Line {
    fn is_recorded(&self) -> bool {
        self.waited_ms.is_some() || self.outcome.is_some()
    }
}

impl Value {
    fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string(),
        }
    }
}

fn whole_time(name: &str, value: f64) -> Result<u64, String> {
    if (0.0..=LONGEST_MS).contains(&value) {
        return Ok(whole(value.round()));
    }
    Err(format!("{name} is {value}, but must be from 0 to {LONGEST_MS:e} milliseconds"))
}

/// Returns the message of serde without its line, which is always 1.
fn problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let column = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&column) {
        Some(said) if error.column() > 0 => format!("{said} at column {}", error.column()),
        Some(said) => said.to_owned(),
        None => text,
    }
}

/// Writes the jobs of a stream. Reading the text returns the same jobs.
pub fn write_trace(stream: &Stream) -> String {
    let mut text = String::with_capacity(stream.jobs.len() * 160);
    let nothing = BTreeMap::new();
    for job in &stream.jobs {
        let line = WrittenLine {
            arrival_ms: job.arrival_ms,
            duration_ms: job.duration_ms,
            kind: stream.kinds.get(job.kind as usize).map_or("", String::as_str),
            requirements: stream.requirements.get(job.requirements as usize).unwrap_or(&nothing),
            priority: job.priority,
            estimate_ms: job.estimate_ms,
        };
        match serde_json::to_string(&line) {
            Ok(line) => text.push_str(&line),
            Err(error) => unreachable!("a job cannot be serialized: {error}"),
        }
        text.push('\n');
    }
    text
}
