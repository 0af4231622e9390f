//! `forebay bench secure`: what keys and TLS cost builds and actions.

use std::fmt;

use clap::Args;
use remote::Login;

use crate::{
    alternation::{Run, Variant, alternate},
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    memory::Memory,
    progress::say,
    rates::BuildLoad,
    report::BenchReport,
    work::{ActionLoad, Work},
};

/// Options of `forebay bench secure`, which starts farms in temporary folders.
#[derive(Debug, Args)]
pub(crate) struct SecureArgs {
    /// Duration of each window in seconds
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Number of windows of each farm
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
}

/// Concurrent requests of the client that executes actions.
const IN_FLIGHT: usize = 64;

/// Whether a farm admits only those who have a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Locks {
    Open,
    Secure,
}

impl Variant for Locks {
    const EACH: &'static [Self] = &[Self::Open, Self::Secure];

    fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Secure => "secure",
        }
    }
}

impl fmt::Display for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "without keys and TLS",
            Self::Secure => "with keys and TLS",
        })
    }
}

/// Measures builds and actions on both farms in turn.
pub(crate) async fn measure(args: &SecureArgs) -> Result<BenchReport, BenchError> {
    let mut memory = Memory::default();
    let open = BenchFarm::start(None, &["--sandbox", "none"]).await?;
    let secure = BenchFarm::start(None, &["--sandbox", "none", "--secure"]).await?;
    log_in(&secure);
    let farms = [(Locks::Open, open), (Locks::Secure, secure)];
    let mut figures = Figures::default();
    say("measuring builds of /bin/true on both farms in turn");
    let mut runs: Vec<_> =
        farms.iter().map(|(locks, farm)| Run::new(*locks, farm, BuildLoad { farm })).collect();
    figures.part("builds", alternate(&mut runs, args.seconds, args.rounds).await?.figures("build"));
    say("measuring actions on both farms in turn");
    let mut works = Vec::new();
    for (locks, farm) in &farms {
        works.push((*locks, farm, Work::new(farm.remote().await?).await?));
    }
    let load = |work| ActionLoad { work, in_flight: IN_FLIGHT };
    let mut runs: Vec<_> =
        works.iter().map(|(locks, farm, work)| Run::new(*locks, farm, load(work))).collect();
    figures.part("actions", alternate(&mut runs, args.seconds, args.rounds).await?.figures("action"));
    for (_, farm) in farms {
        memory.note(&farm);
        farm.stop().await;
    }
    Ok(BenchReport::new("", figures, memory))
}

/// Calls gateways as an operator of this farm.
fn log_in(farm: &BenchFarm) {
    let Some(files) = &farm.endpoints.operator else { return };
    let (token, authorities) = (Some((&files.token).into()), Some((&files.authorities).into()));
    remote::log_in(Login { token, authorities, certificate: None });
}
