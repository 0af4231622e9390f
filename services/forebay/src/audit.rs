//! `forebay audit`: what callers did to the farm, and what they were refused.

use std::fmt::Write as _;
use std::process::ExitCode;

use bus::{AuditSubject, Bus, Follower, Patience, Start, stream};
use clap::Args;
use client::text::date;
use command_line::{
    failure::{Failure, say},
    globals::Globals,
    stdout,
};
use model::{AuditEntry, AuditEvent, AuditKind, AuditRequest, Sequence};
use settings::Settings;

use crate::{farm::Farm, moment::Moment, user::user_at_host};

const EXAMPLES: &str = "\
Examples:
  forebay audit --kind refusal --since 1h
      what was refused in the last hour
  forebay audit --who 'key:web-*' --follow
      what callers with such keys do, as it happens
  forebay audit --target ci/0198c2a4-6f1e-7d2a-9b3c-5e8f01234567
      who cancelled this build or submitted it again

A line has the time, the kind, the caller and how it proved its name, its address, the call, what it was about, and
why it was refused or what it changed. The proof `stated` is a name that a client of the bus stated for itself, as
this command line does: no service has checked it.";

/// Options of `forebay audit`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AuditArgs {
    /// Only events of this caller, e.g. `key:ci`; with * at its end, of callers whose names begin so
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// Only events of this kind: refusal, grant, cancel, quota, drain, environment, purge, access, login, logout or `run_again`
    #[arg(long)]
    kind: Option<AuditKind>,
    /// Only events about this build (GROUP/ID), worker, environment, user or path; with * at its end, about what begins so
    #[arg(long, value_name = "TEXT")]
    target: Option<String>,
    /// Only events at this time or later: an age such as 2h or 30d, or 2026-11-24T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    since: Option<Moment>,
    /// Maximum number of events, 1 to 1000: the last ones
    #[arg(long, value_name = "N", default_value = "100")]
    limit: usize,
    /// Go on with new events as they happen
    #[arg(long)]
    follow: bool,
}

/// Records what a command did without a service and without a connection: a farm that is not there does not make it fail.
pub(crate) async fn record(
    globals: &Globals,
    settings: &Settings,
    (kind, command): (AuditKind, &str),
    target: &str,
    change: &str,
) {
    let written = async {
        let server = globals.nats_server(settings)?;
        let bus = Bus::connect(&server, "forebay cli", Patience::None).await?;
        let by = (&*user_at_host(), command);
        audit::write_stated(&bus, kind, by, target, Some(change)).await?;
        Ok::<(), Failure>(())
    };
    if let Err(failure) = written.await {
        say(&format!("this is done, but could not be recorded for `forebay audit`: {}", failure.line()));
    }
}

/// Prints the events that match, oldest first.
pub(crate) async fn run(
    args: AuditArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let request = AuditRequest {
        who: args.who,
        kind: args.kind,
        target: args.target,
        since_ms: args.since.map(|since| since.before(farm.now())),
        cursor: None,
        limit: Some(args.limit),
    };
    let reply = farm.call(async |client| client.audit(&request).await).await?;
    if globals.json && !args.follow {
        stdout::json(&reply)?;
        return Ok(ExitCode::SUCCESS);
    }
    for entry in reply.events.iter().rev() {
        print(entry, globals)?;
    }
    if args.follow {
        let last = reply.events.first().map_or(Sequence(0), |entry| entry.position);
        return follow(&farm, &request, last, globals).await;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what follows a position, until the command is ended.
async fn follow(
    farm: &Farm,
    request: &AuditRequest,
    last: Sequence,
    globals: &Globals,
) -> Result<ExitCode, Failure> {
    let mut follower =
        Follower::new(farm.client().bus(), stream::AUDIT, AuditSubject::ALL, Start::After(last));
    loop {
        for stored in follower.next(100).await {
            let Ok(event) = stored.read::<AuditEvent>() else { continue };
            let entry = AuditEntry { position: stored.sequence, event };
            if request.matches(&entry.event) {
                print(&entry, globals)?;
            }
        }
    }
}

fn print(entry: &AuditEntry, globals: &Globals) -> Result<(), Failure> {
    if globals.json { stdout::json(entry) } else { stdout::line(&text(&entry.event)) }
}

fn text(event: &AuditEvent) -> String {
    let who = if event.who.is_empty() { "-" } else { event.who.as_str() };
    let address = event.address.as_ref().map_or("-", |address| address.as_str());
    let mut line = format!(
        "{}  {:<11}  {who} ({})  {address}  {}",
        date(event.at_ms),
        event.kind.as_str(),
        event.proof.as_str(),
        event.call
    );
    // Writing to a String cannot fail.
    if let Some(target) = &event.target {
        let _ = write!(line, "  {target}");
    }
    if let Some(reason) = &event.reason {
        let _ = write!(line, "  {reason}");
    }
    if event.dropped > 0 {
        let _ = write!(line, "  (and {} more before)", event.dropped);
    }
    line
}
