//! `forebay bench secure`: what keys and TLS cost builds and actions.

use std::fmt;

use remote::Login;

use crate::{
    alternation::{AlternationArgs, Variant, builds_and_actions},
    error::BenchError,
    farm::BenchFarm,
    memory::Memory,
    report::BenchReport,
};

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
pub(crate) async fn measure(args: &AlternationArgs) -> Result<BenchReport, BenchError> {
    let mut memory = Memory::default();
    let open = BenchFarm::start(None, &["--sandbox", "none"]).await?;
    let secure = BenchFarm::start(None, &["--sandbox", "none", "--secure"]).await?;
    log_in(&secure);
    let farms = [(Locks::Open, open), (Locks::Secure, secure)];
    let figures = builds_and_actions(&farms, args).await?;
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
