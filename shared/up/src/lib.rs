//! `forebay up`: runs a whole farm on this machine in its own data folder.
//!
//! It starts a real nats-server, a real redis-server and one process per service, restarts processes that exit, and
//! stops them in order. It waits for events only, so an idle farm costs it nothing.

mod args;
mod bus_watch;
mod child;
mod contexts;
mod error;
mod farm;
mod find;
mod folder;
mod input;
mod names;
mod nats;
mod ports;
mod process;
mod redis;
mod roster;
mod running;
mod scale;
mod secure;
mod services;
mod signals;
mod stages;
pub mod watchdog;

use std::{fmt::Write as _, io::Write as _};

use bus::Patience;
use invariant::Present as _;
use model::{Endpoints, OperatorFiles};
use settings::Settings;
use tokio::time::Instant;

pub use args::{UpArgs, count};
pub use error::UpError;
pub use input::StopAtEof;
pub use names::WATCHDOG;

use crate::{farm::Farm, folder::Folder, signals::Signals};

/// Runs a farm until SIGTERM or SIGINT, and with `--stop-at-eof` until standard input ends. The caller has already called
/// [`UpArgs::apply_autoscale`] and checked the settings. `json` prints the endpoints as JSON to stdout.
pub async fn run(args: UpArgs, settings: Settings, patience: Patience, json: bool) -> Result<(), UpError> {
    let began = Instant::now();
    let mut signals = Signals::listen(args.stop_at_eof.reached())?;
    let folder = Folder::hold(&settings.data)?;
    let mut farm = Farm::new(folder, args, settings, patience)?;
    farm.end_leftovers().await;
    let started = tokio::select! {
        started = farm.start() => started.map(Some),
        () = signals.next() => Ok(None),
    };
    if let Ok(Some(endpoints)) = &started {
        let sandbox = farm.build_sandbox(&endpoints.nats).await;
        let notes = [sandbox.as_deref().map(sandbox_text), Some(farm.contexts())];
        announce(endpoints, &notes.into_iter().flatten().collect::<Vec<_>>(), json, began);
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
    started.map(drop)
}

/// Prints the endpoints: a banner on stderr, and JSON on stdout if requested.
fn announce(endpoints: &Endpoints, notes: &[&str], json: bool, began: Instant) {
    print_to_stderr(&banner(endpoints, notes, began.elapsed().as_secs_f64()));
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

/// How the workers separate builds from the machine.
fn sandbox_text(sandbox: &str) -> &'static str {
    match sandbox {
        "bubblewrap" => {
            "sandbox builds run in a sandbox, without home folders (build_sandbox, docs/sandboxes.md)"
        }
        _ => "sandbox builds run without a sandbox (build_sandbox, docs/sandboxes.md)",
    }
}

/// How Bazel proves who it is.
fn bazel_options(endpoints: &Endpoints) -> String {
    endpoints.operator.as_ref().map_or_else(String::new, |OperatorFiles { authorities, token, .. }| {
        format!(" --tls_certificate={authorities} --remote_header=authorization=\"Bearer $(cat {token})\"")
    })
}

fn banner(endpoints: &Endpoints, notes: &[&str], seconds: f64) -> String {
    let Endpoints { nats, redis, data, pid, .. } = endpoints;
    // Writing to a String cannot fail.
    let mut text = format!("forebay is up after {seconds:.1} s (process {pid})\n");
    if let Some(http) = &endpoints.http {
        let _ = writeln!(text, "  HTTP    {http}/v1/builds");
    }
    if let Some(grpc) = &endpoints.grpc {
        let _ = writeln!(
            text,
            "  gRPC    {grpc} (bazel build --remote_executor={grpc}{})",
            bazel_options(endpoints)
        );
    }
    let _ = writeln!(text, "  NATS    {nats}\n  Redis   {redis}\n  data    {data} (logs/, endpoints.json)");
    if let Some(OperatorFiles { token, .. }) = &endpoints.operator {
        let _ = writeln!(
            text,
            "  secure  {data}/secure (users of NATS and Redis, rules of gateways, docs/security.md); your API key: {token}"
        );
    }
    for note in notes {
        let _ = writeln!(text, "  {note}");
    }
    let next = if endpoints.http.is_some() {
        format!("try     forebay submit --data {data} --follow -- echo hello")
    } else {
        format!("next    forebay serve SERVICE... --data {data} (forebay serve --help names the services)")
    };
    let _ = writeln!(text, "  {next}\n  stop    Ctrl-C");
    text
}
