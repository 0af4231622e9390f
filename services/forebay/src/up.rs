//! `forebay up`: a whole farm on this machine, in a folder of its own.
//!
//! It starts a real nats-server and a real redis-server and one process for each service, starts again what dies,
//! and stops them in order. It waits for events only: an idle farm costs it nothing.

mod bus_watch;
mod child;
mod error;
mod farm;
mod find;
mod folder;
mod nats;
mod ports;
mod process;
mod redis;
mod roster;
mod running;
mod scale;
mod services;
mod signals;
pub(crate) mod watchdog;

use std::{fmt::Write as _, io::Write as _};

use bus::Patience;
use model::Endpoints;
use settings::Settings;
use tokio::time::Instant;

pub(crate) use error::UpError;

use farm::Farm;
use folder::Folder;
use signals::Signals;

/// Runs a whole farm on this machine until Ctrl-C
///
/// Everything it keeps is in the folder --data, which one `up` at a time may use. A nats-server and a
/// redis-server are started, unless --nats or --redis (or the setting) names another one than the default.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct UpArgs {
    /// Port of nats-server, 0 for any free one; none is started where --nats names another than the default
    #[arg(long, value_name = "PORT", default_value_t = 4222)]
    pub(crate) nats_port: u16,
    /// Port of redis-server, 0 for any free one; none is started where --redis names another than the default
    #[arg(long, value_name = "PORT", default_value_t = 6379)]
    pub(crate) redis_port: u16,
    /// Port of the HTTP API, 0 for any free one [default: that of the setting `http_listen`, 8080]
    #[arg(long, value_name = "PORT")]
    pub(crate) http_port: Option<u16>,
    /// Port of the Remote Execution API, 0 for any free one [default: that of the setting `grpc_listen`, 8980]
    #[arg(long, value_name = "PORT")]
    pub(crate) grpc_port: Option<u16>,
    /// When nats-server writes to the disk: `always` survives a power cut, and is slower
    #[arg(long, value_enum, value_name = "WHEN", env = "FOREBAY_NATS_SYNC", default_value = "default")]
    pub(crate) sync: Sync,
    /// Start the servers and set them up, and no service
    #[arg(long)]
    pub(crate) no_services: bool,
    /// Workspaces of each worker: how many builds it runs at once [default: two for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) workspaces: Option<u16>,
    /// Workers; with `--autoscale workers=...` as many as wait for them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) workers: u16,
    /// Executors; with `--autoscale executors=...` as many as wait for them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) executors: u16,
    /// Actions that each executor runs at a time [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) executor_slots: Option<u16>,
    /// Has the number of workers or executors follow the work, as `workers=0..4`, `executors=1..8`; how patiently, the
    /// setting `autoscale` says. May be given for each
    #[arg(long, value_name = "POOL=MIN..MAX")]
    pub(crate) autoscale: Vec<scale::Bounds>,
    /// Where output files, logs and jobs are kept, as `file:///PATH` [default: `objects` in the data folder]. To be the same on
    /// all machines of a farm
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Make the store and the content-addressable store of this `up` the farm's, on a NATS that knows others; restart the
    /// farm's other services afterwards
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Show on a terminal what `up` logs; without it only problems, and the rest is in logs/up.log of the data folder
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// How actions are confined: `none` where the machine cannot [default: the setting `sandbox`, bubblewrap]
    #[arg(long, value_name = "HOW", value_parser = ["bubblewrap", "none"])]
    pub(crate) sandbox: Option<String>,
}

/// When nats-server writes to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Sync {
    /// Every two minutes; what was acknowledged survives the server's death, not the machine's
    #[default]
    Default,
    /// Before each acknowledgement
    Always,
}

/// Runs a farm until SIGTERM or SIGINT. Returns the exit code.
pub(crate) async fn run(
    args: UpArgs,
    mut settings: Settings,
    patience: Patience,
    json: bool,
) -> Result<u8, UpError> {
    args.autoscale.iter().for_each(|bounds| bounds.apply(&mut settings));
    settings.check()?;
    autoscaler::check(&settings)?;
    let began = Instant::now();
    let mut signals = Signals::listen()?;
    let folder = Folder::hold(&settings.data)?;
    let mut farm = Farm::new(folder, args, settings, patience);
    farm.end_leftovers().await;
    let started = tokio::select! {
        started = farm.start() => started.map(Some),
        () = signals.next() => Ok(None),
    };
    if let Ok(Some(endpoints)) = &started {
        announce(endpoints, json, began);
        tokio::select! {
            () = signals.next() => {}
            () = farm.scale(&endpoints.nats) => {}
        }
    }
    match &started {
        Ok(Some(endpoints)) => tell(&farm.what_stops(&endpoints.nats).await),
        Ok(None) => tell("forebay stops; once more kills it\n"),
        Err(_) => {}
    }
    farm.stop(&mut signals).await;
    started.map(|_| 0)
}

/// For people on stderr, for programs on stdout.
fn announce(endpoints: &Endpoints, json: bool, began: Instant) {
    tell(&banner(endpoints, began.elapsed().as_secs_f64()));
    if json {
        let line = serde_json::to_string(endpoints).unwrap_or_default();
        // Whoever reads may have gone; the farm runs on.
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

/// On stderr, which may be closed; the farm runs on.
fn tell(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn banner(endpoints: &Endpoints, seconds: f64) -> String {
    let Endpoints { nats, redis, data, pid, .. } = endpoints;
    // Writing to a String cannot fail.
    let mut text = format!("forebay is up after {seconds:.1} s (process {pid})\n");
    if let Some(http) = &endpoints.http {
        let _ = writeln!(text, "  HTTP    {http}/v1/builds");
    }
    if let Some(grpc) = &endpoints.grpc {
        let _ = writeln!(text, "  gRPC    {grpc} (bazel build --remote_executor={grpc})");
    }
    let _ = writeln!(text, "  NATS    {nats}\n  Redis   {redis}\n  data    {data} (logs/, endpoints.json)");
    let next = if endpoints.http.is_some() {
        format!("try     forebay submit --data {data} --follow -- echo hello")
    } else {
        format!("next    forebay serve SERVICE... --data {data} (forebay serve --help names the services)")
    };
    let _ = writeln!(text, "  {next}\n  stop    Ctrl-C");
    text
}
