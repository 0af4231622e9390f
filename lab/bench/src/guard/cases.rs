//! What the guard measures: builds and actions, with the defaults of users and with more in parallel.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::compare::{CaseFigures, Counts, Rates};
use crate::{
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    floor::Spawn,
    rates::BuildLoad,
    report::processors,
    rounds::{Rounds, Windows},
    work::{ActionLoad, Work},
};

/// Concurrent requests of the client that executes actions.
const IN_FLIGHT: usize = 64;

/// A load and the settings of its farm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum Case {
    /// Builds, with the default number of workspaces
    #[serde(rename = "builds_default")]
    #[value(name = "builds_default")]
    BuildsByDefault,
    /// Builds in 16 workspaces
    #[serde(rename = "builds_16_workspaces")]
    #[value(name = "builds_16_workspaces")]
    BuildsInSixteen,
    /// Actions without a sandbox, with the default number of slots
    #[serde(rename = "actions_default")]
    #[value(name = "actions_default")]
    ActionsByDefault,
    /// Actions without a sandbox in 16 slots
    #[serde(rename = "actions_16_slots")]
    #[value(name = "actions_16_slots")]
    ActionsInSixteen,
}

impl Case {
    pub(crate) const ALL: [Self; 4] =
        [Self::BuildsByDefault, Self::BuildsInSixteen, Self::ActionsByDefault, Self::ActionsInSixteen];

    /// Its field in the file and in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BuildsByDefault => "builds_default",
            Self::BuildsInSixteen => "builds_16_workspaces",
            Self::ActionsByDefault => "actions_default",
            Self::ActionsInSixteen => "actions_16_slots",
        }
    }

    /// The command that measures this case alone.
    pub(crate) fn command(self) -> String {
        match self {
            Self::BuildsByDefault => {
                format!("forebay bench builds --only rates --workspaces {}", 2 * processors())
            }
            Self::BuildsInSixteen => "forebay bench builds --only rates --workspaces 16".to_owned(),
            Self::ActionsByDefault => {
                format!("forebay bench actions --only none --executor-slots {}", processors())
            }
            Self::ActionsInSixteen => "forebay bench actions --only none --executor-slots 16".to_owned(),
        }
    }

    /// Measures on a new farm, with windows of this length.
    pub(crate) async fn measure(self, each: Duration) -> Result<(CaseFigures, Figures), BenchError> {
        match self {
            Self::BuildsByDefault => builds(None, each).await,
            Self::BuildsInSixteen => builds(Some(16), each).await,
            Self::ActionsByDefault => actions(&[], each).await,
            Self::ActionsInSixteen => actions(&["--executor-slots", "16"], each).await,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

async fn builds(workspaces: Option<u16>, each: Duration) -> Result<(CaseFigures, Figures), BenchError> {
    let farm = BenchFarm::start(workspaces, &[]).await?;
    let rounds = Rounds::measure(&farm, Spawn::Plain, Windows::of(each), &BuildLoad { farm: &farm }).await?;
    farm.stop().await;
    Ok(report(&rounds, "build"))
}

async fn actions(slots: &[&str], each: Duration) -> Result<(CaseFigures, Figures), BenchError> {
    let farm = BenchFarm::start(None, &[&["--sandbox", "none"], slots].concat()).await?;
    let work = Work::new(farm.remote().await?).await?;
    let load = ActionLoad { work: &work, in_flight: IN_FLIGHT };
    let rounds = Rounds::measure(&farm, Spawn::Plain, Windows::of(each), &load).await?;
    farm.stop().await;
    Ok(report(&rounds, "action"))
}

fn report(rounds: &Rounds, item: &str) -> (CaseFigures, Figures) {
    let mut shown = Figures::default();
    shown.figure("throughput_ratio", &format!("{item}s to bare spawns"), rounds.throughput_ratio(), "");
    shown.append(rounds.cost(item));
    let spawn = rounds.spawn_processor_us();
    let rates = Rates {
        throughput_ratio: rounds.undisturbed_throughput_ratio(),
        processor_ratio: rounds.processor_ratio(),
        processes: rounds.processor_us().into_iter().map(|(name, time)| (name, time / spawn)).collect(),
    };
    let counts = Counts {
        stored_messages: rounds.counted.stored,
        messages: rounds.counted.messages(),
        redis_commands: rounds.counted.redis_commands(),
    };
    (CaseFigures { rates, counts }, shown)
}
