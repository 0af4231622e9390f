//! `forebay ls`

use std::{cmp::Reverse, process::ExitCode};

use clap::Args;
use comfy_table::{Table, presets};
use model::{BuildView, Group, ListReply, ListRequest, Millis, State};
use settings::Settings;

use crate::{
    bytes_text::{age, seconds, span},
    failure::Failure,
    farm::Farm,
    globals::Globals,
    record_text::{outcome_text, work_text},
    stdout,
};

/// Options of `forebay ls`.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only this group [default: all that had a build lately]
    #[arg(long)]
    group: Option<Group>,
    #[arg(long, help = "Only builds in this state: enqueued, in_progress or finished", value_parser = parse_state)]
    state: Option<State>,
    /// At most this many, newest first
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse_limit)]
    limit: usize,
}

fn parse_state(text: &str) -> Result<State, String> {
    let wanted = text.to_ascii_uppercase().replace('-', "_");
    let all = [State::Enqueued, State::InProgress, State::Finished];
    let found = all.into_iter().find(|state| state.as_str() == wanted);
    found.ok_or_else(|| "enqueued, in_progress or finished is expected".to_owned())
}

fn parse_limit(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|limit| (1..=1000).contains(limit))
        .ok_or_else(|| "1 to 1000 is expected".to_owned())
}

/// Lists recent builds.
pub(crate) async fn run(args: &LsArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let groups = match &args.group {
        Some(group) => vec![group.clone()],
        None => farm.call(async |client| client.groups().await).await?,
    };
    let request = ListRequest { state: args.state, limit: Some(args.limit) };
    let mut builds = Vec::new();
    let mut truncated = false;
    for group in &groups {
        let reply = farm.call(async |client| client.list(group, &request).await).await?;
        truncated |= reply.truncated;
        builds.extend(reply.builds);
    }
    builds.sort_by_key(|view| Reverse((view.record.build.submitted_at_ms, view.record.build.id)));
    builds.truncate(args.limit);
    if globals.json {
        stdout::json(&ListReply { builds, truncated })?;
    } else {
        stdout::line(&table(&builds, farm.now()).trim_fmt())?;
    }
    Ok(ExitCode::SUCCESS)
}

const COMMAND_WIDTH: usize = 60;

fn table(builds: &[BuildView], now: Millis) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["ID", "GROUP", "PRIORITY", "STATE", "OUTCOME", "AGE", "TIME", "COMMAND"]);
    for view in builds {
        let build = &view.record.build;
        table.add_row([
            build.id.to_string(),
            build.group.to_string(),
            build.priority.to_string(),
            view.state.as_str().to_owned(),
            view.record.result().map_or_else(|| "-".to_owned(), |result| outcome_text(result.outcome)),
            age(build.submitted_at_ms, now),
            time(view, now),
            shorten(&work_text(build)),
        ]);
    }
    table
}

/// How long it has waited in this state, or ran.
fn time(view: &BuildView, now: Millis) -> String {
    match (view.record.result(), view.record.invocation()) {
        (Some(result), _) => seconds(result.wall_seconds),
        (None, Some(run)) => span(run.started_at_ms, now),
        (None, None) => span(view.record.queue.enqueued_at_ms, now),
    }
}

fn shorten(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() <= COMMAND_WIDTH {
        return line;
    }
    line.chars().take(COMMAND_WIDTH - 3).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::{State, parse_limit, parse_state, shorten};

    #[test]
    fn states_are_read_as_people_write_them() {
        assert_eq!(parse_state("in-progress"), Ok(State::InProgress));
        assert_eq!(parse_state("FINISHED"), Ok(State::Finished));
        assert!(parse_state("done").is_err());
    }

    #[test]
    fn limits_are_the_api_s() {
        assert_eq!(parse_limit("1000"), Ok(1000));
        assert!(parse_limit("0").is_err() && parse_limit("1001").is_err());
    }

    #[test]
    fn commands_fit_in_a_line() {
        assert_eq!(shorten("a\nb"), "a b");
        assert_eq!(shorten(&"x".repeat(61)).len(), 60);
    }
}
