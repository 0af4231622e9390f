//! `forebay why`: explains why a build is waiting.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use command_line::{failure::Failure, globals::Globals, stdout};
use model::{Millis, StartBasis, Waiting, WhyReply};
use policy::basis_text;
use settings::Settings;

use telemetry::escaped;

use crate::{
    bytes_text::{about, age},
    farm::{BuildArgs, Farm},
};

/// Options of `forebay why`.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    build: BuildArgs,
}

/// Explains why a build is waiting.
pub(crate) async fn run(args: WhyArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let key = farm.resolve(&args.build).await?;
    let reply = farm.call(async |client| client.why(&key).await).await?;
    if globals.json {
        stdout::json(&reply)?;
    } else {
        stdout::line(&text(&reply, farm.now()))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn text(reply: &WhyReply, now: Millis) -> String {
    let mut lines = vec![format!("build {}/{}: {}", reply.group, reply.id, escaped(&reply.reason))];
    let Some(waiting) = &reply.waiting else { return lines.concat() };
    let mut say = |name: &str, what: String| lines.push(format!("  {name:<16}{}", escaped(&what)));
    say("queue position", format!("{} of {} in group {}", waiting.place, waiting.queued, reply.group));
    say("queued for", age(reply.waiting_since_ms, now));
    say("reserves", format!("{} ESU", reply.reserves));
    if let Some(ms) = reply.expected_ms {
        say("expected run", about(Duration::from_millis(ms)));
    }
    if !waiting.counts_as.is_empty() {
        say("counted as", format!("{} ESU: the maximum of its group", waiting.counts_as));
    }
    for by in &waiting.throttled_by {
        let (kind, left) = (&by.executor_type, by.remaining);
        let of = format!("target {}, in progress {}, reserved {}", by.target, by.in_progress, by.reserved);
        let whose = if by.of_executors { " of the executors" } else { "" };
        say("throttled by", format!("{kind}{whose}: {} ESU needed, {left} available ({of})", by.needed));
    }
    if let Some(ms) = waiting.ahead_ms.filter(|_| waiting.place > 1) {
        say("ahead of it", format!("{} of work", about(Duration::from_millis(ms))));
    }
    say("idle workspaces", format!("{} of {}", waiting.idle_workspaces, waiting.workspaces));
    say("expected start", expected(waiting, now));
    for build in &waiting.in_progress {
        say("in progress", format!("{} ({} ESU)", build.id, build.occupancy));
    }
    lines.join("\n")
}

fn expected(waiting: &Waiting, now: Millis) -> String {
    match (waiting.expected_start_ms, waiting.expected_by) {
        (Some(at), _) if at <= now => "now".to_owned(),
        (Some(at), basis) => {
            let by = basis.map(|basis| format!(", {}", basis_text(basis))).unwrap_or_default();
            let by_rate = matches!(basis, Some(StartBasis::Rate | StartBasis::Both));
            let rate = waiting.ends_per_second.filter(|_| by_rate);
            let rate = rate.map(|rate| format!(", {rate:.2} per second")).unwrap_or_default();
            format!("in about {}{by}{rate}", about(at.since(now)))
        }
        (None, _) if waiting.workspaces == 0 => "unknown: no worker accepts builds".to_owned(),
        (None, _) => "unknown: too few builds have ended to estimate it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_waits_is_explained() {
        let reply: WhyReply = serde_json::from_value(serde_json::json!({
            "id": "00000000-0000-4000-8000-000000000001", "group": "ci", "priority": "batch", "state": "ENQUEUED",
            "waiting_since_ms": 0, "reason": "it needs more", "reserves": {"x86": 2.5},
            "expected_ms": 42_000,
            "waiting": {"place": 3, "queued": 9, "idle_workspaces": 1, "workspaces": 4, "ends_per_second": 0.5,
                "ahead_ms": 8000, "expected_start_ms": 66_000, "expected_by": "both",
                "throttled_by": [{"executor_type": "x86", "needed": 2.5, "remaining": 1, "target": 10,
                    "in_progress": 8, "reserved": 1}]}
        }))
        .unwrap();
        let text = text(&reply, Millis(60_000));
        for part in [
            "ci/",
            "it needs more",
            "3 of 9",
            "x86 2.5 ESU",
            "2.5 ESU needed, 1 available",
            "in about 6s",
            "0.50 per second",
            "42s",
            "8s of work",
            "1 of 4",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
