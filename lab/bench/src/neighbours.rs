//! Wall time of builds beside one that misbehaves.
//!
//! In each round, neighbours that use one processor each run beside one build of each kind in turn. With a free processor for it,
//! they are compared with the same builds alone; with more neighbours than processors, with the same builds beside an ordinary
//! one, because a share of the processors is due to any build.

use std::collections::BTreeMap;

use command_line::failure::say;
use futures::future::{Either, join_all, select};
use model::{BuildId, BuildKey, BuildLimits, BuildRequest, ReasonCode};

use crate::{error::BenchError, farm::BenchFarm, figures::Figures, statistics::median_and_worst};

const ROUNDS: usize = 3;
/// About two seconds of processor time.
const NEIGHBOUR: &str = "i=0; while [ $i -lt 2000000 ]; do i=$((i+1)); done";

/// A build beside the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Beside {
    Nothing,
    Ordinary,
    ForkBomb,
    MemoryHog,
    DiskFiller,
    LogFlood,
}

impl Beside {
    const ALL: [Self; 6] =
        [Self::Nothing, Self::Ordinary, Self::ForkBomb, Self::MemoryHog, Self::DiskFiller, Self::LogFlood];

    /// Its key in the report, its script, and the reason for which it must end.
    fn parts(self) -> (&'static str, &'static str, Option<ReasonCode>) {
        match self {
            Self::Nothing => ("nothing", "", None),
            Self::Ordinary => ("ordinary", "while :; do :; done", None),
            Self::ForkBomb => {
                ("fork_bomb", "b() { b | b & }; b; sleep 60", Some(ReasonCode::TooManyProcesses))
            }
            Self::MemoryHog => ("memory_hog", "tail /dev/zero", Some(ReasonCode::OutOfMemory)),
            Self::DiskFiller => {
                ("disk_filler", "head -c 100G /dev/zero > f; sleep 60", Some(ReasonCode::TooMuchDisk))
            }
            Self::LogFlood => ("log_flood", "yes", Some(ReasonCode::TooMuchOutput)),
        }
    }
}

/// What the builds beside the neighbours ended with.
#[derive(Debug, Default)]
struct Ends {
    expected: u32,
    other: u32,
    /// How long they ran.
    seconds: Vec<f64>,
}

/// Measures both numbers of neighbours.
pub(crate) async fn measure() -> Result<Figures, BenchError> {
    let processors = u16::try_from(std::thread::available_parallelism().map_or(1, usize::from)).unwrap_or(1);
    let mut figures = Figures::default();
    let few = (processors - 1).max(1);
    figures.part("few", compare(few, Beside::Nothing).await?);
    figures.part("many", compare(processors * 2, Beside::Ordinary).await?);
    Ok(figures)
}

async fn compare(neighbours: u16, base: Beside) -> Result<Figures, BenchError> {
    let farm = BenchFarm::start(neighbours + 1, &["--executors", "0"]).await?;
    let mut walls: BTreeMap<Beside, Vec<f64>> = BTreeMap::new();
    let mut ends: BTreeMap<Beside, Ends> = BTreeMap::new();
    for round in 1..=ROUNDS {
        say(&format!("measuring {neighbours} builds beside others, {round} of {ROUNDS}"));
        for beside in Beside::ALL {
            let seconds = one(&farm, neighbours, beside, ends.entry(beside).or_default()).await?;
            walls.entry(beside).or_default().extend(seconds);
        }
    }
    farm.stop().await;
    let mut medians: BTreeMap<Beside, f64> =
        walls.into_iter().map(|(beside, mut walls)| (beside, median_and_worst(&mut walls).0)).collect();
    let base_seconds = medians.get(&base).copied().unwrap_or_default();
    let mut figures = Figures::default();
    figures.field("neighbours", neighbours);
    let name = |beside: Beside| beside.parts().0.replace('_', " ");
    figures.figure(
        "base_seconds",
        &format!("{neighbours} builds beside {}: wall time", name(base)),
        base_seconds,
        "s",
    );
    medians.remove(&base);
    for (beside, seconds) in medians {
        let (key, _, _) = beside.parts();
        let mut part = Figures::default();
        part.figure(
            "to_base_ratio",
            &format!("beside {}: wall time to that", name(beside)),
            seconds / base_seconds,
            "",
        );
        if let (_, _, Some(_)) = beside.parts() {
            let Ends { expected, other, mut seconds } = ends.remove(&beside).unwrap_or_default();
            let lived = median_and_worst(&mut seconds).1;
            part.figure("seconds", &format!("{}: longest run time", name(beside)), lived, "s");
            part.figure(
                "expected_ends",
                &format!("{}: ended for the right reason", name(beside)),
                expected,
                "",
            );
            part.figure("other_ends", &format!("{}: ended otherwise", name(beside)), other, "");
        }
        figures.part(key, part);
    }
    Ok(figures)
}

/// Wall times in seconds of the neighbours beside one build.
async fn one(
    farm: &BenchFarm,
    neighbours: u16,
    beside: Beside,
    ends: &mut Ends,
) -> Result<Vec<f64>, BenchError> {
    let request = |script: &str| {
        let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let limits = BuildLimits {
            memory_bytes: Some(512 << 20),
            disk_bytes: Some(512 << 20),
            output_bytes: Some(64 << 20),
            ..BuildLimits::default()
        };
        BuildRequest { command, limits, timeout_seconds: Some(60), ..BuildRequest::default() }
    };
    let (_, script, reason) = beside.parts();
    let neighbour = request(NEIGHBOUR);
    let all = join_all((0..neighbours).map(|_| farm.build(&neighbour, |_| ())));
    let id = BuildId::generate();
    let other = BuildRequest { id: Some(id), ..request(script) };
    let (records, ended) = if beside == Beside::Nothing {
        (all.await, None)
    } else {
        let mut other = Box::pin(farm.build(&other, |_| ()));
        match select(all, &mut other).await {
            // It ends by itself, for its reason.
            Either::Left((records, _)) if reason.is_some() => (records, Some(other.await?)),
            Either::Left((records, _)) => {
                let key = BuildKey { group: farm.group.clone(), id };
                let cancelled = farm.client.cancel(&key, None).await;
                cancelled.map_err(|error| BenchError::new("cancelling a build", &error))?;
                (records, None)
            }
            Either::Right((ended, all)) => (all.await, Some(ended?)),
        }
    };
    if let Some(record) = ended {
        let result = record.result();
        ends.seconds.extend(result.map(|it| it.wall_seconds));
        let is_expected = result.and_then(|it| it.reason.as_ref()).map(|it| it.code) == reason;
        *if is_expected { &mut ends.expected } else { &mut ends.other } += 1;
    }
    let walls = records.into_iter().map(|record| Ok(record?.result().map_or(0.0, |it| it.wall_seconds)));
    let walls: Result<Vec<f64>, BenchError> = walls.collect();
    farm.wait_for(0).await?;
    walls
}
