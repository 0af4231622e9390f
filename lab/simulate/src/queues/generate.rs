//! Generates the streams of workloads.

use std::collections::BTreeMap;

use model::Priority;
use policy::Random;
use replay::{Interner, Job, Stream};

use super::{
    errors::imprecise_ms,
    name::Reading,
    workload::{Kind, LONG, Mix, SHORT, Workload},
};
use crate::{
    random::{self, exponential_ms, normal},
    statistics::whole,
};

/// Shortest job duration in milliseconds.
const SHORTEST_MS: u64 = 100;

impl Workload {
    /// Returns the jobs for `seed`, with their workers. Equal seeds give equal streams.
    pub fn stream(self, seed: u64, reading: Reading) -> Stream {
        let draws = |purpose| random::stream(seed, self.as_str(), purpose);
        let (mut delays, mut kinds) = (draws("delay"), draws("kind"));
        let (mut durations, mut errors) = (draws("duration"), draws("estimate"));
        let mix = self.mix(reading);
        let mut stream =
            Stream { name: self.as_str().to_owned(), workers: self.workers(reading), ..Stream::default() };
        let (mut names, mut requirements) = (Interner::default(), Interner::default());
        let mut arrival_ms = 0;
        for number in 0..self.jobs() {
            let kind = mix.draw(number as u64, &mut kinds);
            let duration_ms = whole(normal(&mut durations, kind.mean_ms, kind.deviation_ms)).max(SHORTEST_MS);
            let asked: BTreeMap<String, String> =
                [("env", "c"), ("hwgroup", kind.groups)].map(|(n, v)| (n.to_owned(), v.to_owned())).into();
            stream.jobs.push(Job {
                arrival_ms,
                duration_ms,
                estimate_ms: imprecise_ms(duration_ms, &mut errors, reading),
                priority: Priority::default(),
                requirements: requirements.number(&asked, &mut stream.requirements),
                kind: names.number(&kind.name.to_owned(), &mut stream.kinds),
            });
            arrival_ms += exponential_ms(&mut delays, self.delay_ms());
        }
        stream
    }
}

impl Mix {
    /// Draws the kind of job `number`, counted from 0.
    fn draw(self, number: u64, random: &mut Random) -> Kind {
        match self {
            Self::Weighted(kinds) => {
                let mut drawn = random.below(kinds.iter().map(|(weight, _)| weight).sum());
                for (weight, kind) in kinds {
                    match drawn.checked_sub(*weight) {
                        Some(left) => drawn = left,
                        None => return *kind,
                    }
                }
                unreachable!("a number below the sum of the weights is in no kind")
            }
            Self::Phases { first, long, of } => {
                let is_long = random.below(of) < long;
                if number >= first && is_long { LONG } else { SHORT }
            }
        }
    }
}
