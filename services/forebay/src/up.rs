//! `forebay up`: runs a whole farm on this machine in its own data folder.
//!
//! It starts a real nats-server, a real redis-server and one process per service, restarts processes that exit, and
//! stops them in order. It waits for events only, so an idle farm costs it nothing.

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
use invariant::Present as _;
use model::Endpoints;
use settings::Settings;
use tokio::time::Instant;

pub(crate) use error::UpError;

use farm::Farm;
use folder::Folder;
use signals::Signals;

/// Run a whole farm on this machine until Ctrl-C
///
/// All data is in the folder --data, which only one `up` at a time may use. It starts a nats-server and a
/// redis-server unless --nats or --redis (or the settings) point elsewhere.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct UpArgs {
    /// Port for nats-server (0 = any free port); ignored if --nats points elsewhere
    #[arg(long, value_name = "PORT", default_value_t = 4222)]
    pub(crate) nats_port: u16,
    /// Port for redis-server (0 = any free port); ignored if --redis points elsewhere
    #[arg(long, value_name = "PORT", default_value_t = 6379)]
    pub(crate) redis_port: u16,
    /// Port for the HTTP API (0 = any free port) [default: port of the setting `http_listen`, 8080]
    #[arg(long, value_name = "PORT")]
    pub(crate) http_port: Option<u16>,
    /// Port for the Remote Execution API (0 = any free port) [default: port of the setting `grpc_listen`, 8980]
    #[arg(long, value_name = "PORT")]
    pub(crate) grpc_port: Option<u16>,
    /// When nats-server syncs to disk: `always` survives a power failure but is slower
    #[arg(long, value_enum, value_name = "WHEN", env = "FOREBAY_NATS_SYNC", default_value = "default")]
    pub(crate) sync: Sync,
    /// Start and set up the servers only, no services
    #[arg(long)]
    pub(crate) no_services: bool,
    /// Number of workspaces per worker: builds that it runs in parallel [default: two per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) workspaces: Option<u16>,
    /// Number of workers (ignored with --autoscale workers=...)
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) workers: u16,
    /// Number of executors (ignored with --autoscale executors=...)
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) executors: u16,
    /// Number of actions that each executor runs in parallel [default: one per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) executor_slots: Option<u16>,
    /// Autoscale a pool, e.g. workers=0..4 or executors=1..8 (repeatable); tuning is in the `autoscale` setting
    #[arg(long, value_name = "POOL=MIN..MAX")]
    pub(crate) autoscale: Vec<scale::Bounds>,
    /// URL of the store for output files, logs and jobs: `file:///PATH`, the same on all machines of a farm [default:
    /// `objects` in the data folder]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Replace the stores that are recorded on NATS by those of this `up`; restart the other services
    /// of the farm afterwards
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Show the whole log on a terminal [default: only problems; the whole log is in logs/up.log of the data folder]
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Sandbox for actions: `none` if the machine cannot run bubblewrap [default: the setting `sandbox`, bubblewrap]
    #[arg(long, value_name = "HOW", value_parser = ["bubblewrap", "none"])]
    pub(crate) sandbox: Option<String>,
}

/// When nats-server syncs to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Sync {
    /// Every two minutes: acknowledged data survives a crash of the server, not of the machine
    #[default]
    Default,
    /// Before each acknowledgement: acknowledged data survives a power failure
    Always,
}

/// Runs a farm until SIGTERM or SIGINT, and returns the exit code.
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
        Ok(Some(endpoints)) => print_to_stderr(&farm.what_stops(&endpoints.nats).await),
        Ok(None) => print_to_stderr("stopping; press Ctrl-C again to kill\n"),
        Err(_) => {}
    }
    farm.stop(&mut signals).await;
    started.map(|_| 0)
}

/// Prints the endpoints: a banner on stderr, and JSON on stdout if requested.
fn announce(endpoints: &Endpoints, json: bool, began: Instant) {
    print_to_stderr(&banner(endpoints, began.elapsed().as_secs_f64()));
    if json {
        let line = serde_json::to_string(endpoints).present("the endpoints as JSON");
        // The reader may have closed stdout; the farm keeps running.
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

fn print_to_stderr(text: &str) {
    // Stderr may be closed; the farm keeps running.
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
