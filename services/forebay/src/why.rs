//! `forebay why`

use std::process::ExitCode;

use clap::Args;
use model::{Millis, Waiting, WhyReply};
use settings::Settings;

use crate::{
    bytes_text::age,
    failure::Failure,
    farm::{BuildArgs, Farm},
    globals::Globals,
    stdout,
};

/// Options of `forebay why`.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    build: BuildArgs,
}

/// Says why a build waits.
pub(crate) async fn run(args: WhyArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let key = farm.resolve(&args.build).await?;
    let reply = farm.call(async |client| client.why(&key).await).await?;
    if globals.json {
        stdout::json(&reply)?;
    } else {
        stdout::line(&text(&reply, Millis::now()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(reply: &WhyReply, now: Millis) -> String {
    let mut lines = vec![format!("build {}/{}: {}", reply.group, reply.id, reply.reason)];
    let Some(waiting) = &reply.waiting else { return lines.concat() };
    let mut say = |name: &str, what: String| lines.push(format!("  {name:<16}{what}"));
    say("place", format!("{} of {} in group {}", waiting.place, waiting.queued, reply.group));
    say("waits for", age(reply.waiting_since_ms, now));
    say("reserves", format!("{} ESU", reply.reserves));
    if !waiting.counts_as.is_empty() {
        say("counts as", format!("{} ESU: its group can never have more", waiting.counts_as));
    }
    for by in &waiting.throttled_by {
        let (kind, left) = (&by.executor_type, by.remaining);
        let of = format!("target {}, in progress {}, reserved {}", by.target, by.in_progress, by.reserved);
        say("throttled by", format!("{kind}: {left} ESU left of {} ({of})", by.needed));
    }
    say("idle workspaces", waiting.idle_workspaces.to_string());
    say("expected start", expected(waiting, now));
    for build in &waiting.in_progress {
        say("in progress", format!("{} ({} ESU)", build.id, build.occupancy));
    }
    lines.join("\n")
}

fn expected(waiting: &Waiting, now: Millis) -> String {
    match (waiting.expected_start_ms, waiting.ends_per_second) {
        (Some(at), _) if at <= now => "now".to_owned(),
        (Some(at), Some(rate)) => {
            let wait = humantime::format_duration(std::time::Duration::from_secs(at.since(now).as_secs()));
            format!("in about {wait}, as builds of this group end lately, {rate:.2} a second")
        }
        (_, _) => "unknown: no build of this group was seen to end".to_owned(),
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
            "waiting": {"place": 3, "queued": 9, "idle_workspaces": 1, "ends_per_second": 0.5,
                "expected_start_ms": 66_000,
                "throttled_by": [{"executor_type": "x86", "needed": 2.5, "remaining": 1, "target": 10,
                    "in_progress": 8, "reserved": 1}]}
        }))
        .unwrap();
        let text = text(&reply, Millis(60_000));
        for part in ["ci/", "it needs more", "3 of 9", "x86 2.5 ESU", "1 ESU left of 2.5", "in about 6s"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
