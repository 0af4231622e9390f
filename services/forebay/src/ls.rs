//! `forebay ls`: lists recent builds.

use std::process::ExitCode;

use clap::Args;
use comfy_table::{Table, presets};
use command_line::{
    failure::{Failure, say},
    globals::Globals,
    stdout,
};
use invariant::impossible;
use model::{BuildView, Group, ListReply, ListRequest, Millis, Outcome, Priority, State};
use settings::Settings;

use crate::{
    bytes_text::{age, seconds},
    farm::Farm,
    moment::Moment,
    record_text::{outcome_text, work_text},
    style::{Tone, columns, one_line},
};

const EXAMPLES: &str = "\
Examples:
  forebay ls --label branch=main --outcome failed
      lists the failed builds of a branch
  forebay ls --since 7d --text //app:tests --priority automated
      searches the archive
  forebay ls --wide
      shows whole ids, priorities and labels

Every command accepts a shortened id as long as it is unique.";

const OUTCOME_HELP: &str =
    "Only builds with this outcome: succeeded, failed, timed_out, cancelled, expired, lost or rejected";

/// Options of `forebay ls`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LsArgs {
    /// Only builds of this group [default: all groups with recent builds]
    #[arg(long)]
    group: Option<Group>,
    #[arg(long, help = "Only builds in this state: enqueued, in_progress or finished", value_parser = parse_state)]
    state: Option<State>,
    #[arg(long, help = OUTCOME_HELP, value_parser = parse_outcome)]
    outcome: Option<Outcome>,
    /// Only builds with this label (repeatable; builds must have all of them)
    #[arg(long, value_name = "NAME=VALUE", value_parser = command_line::pair)]
    label: Vec<(String, String)>,
    /// Only builds of this priority. This and the following options, except --limit and --wide, need an archive
    #[arg(long)]
    priority: Option<Priority>,
    /// Only builds of this submitter
    #[arg(long, value_name = "NAME")]
    submitter: Option<String>,
    /// Only builds submitted at this time or later: an age such as 2h or 30d, or 2026-11-24T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    since: Option<Moment>,
    /// Only builds submitted before this time
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    until: Option<Moment>,
    /// Only builds that require this property of their worker (repeatable)
    #[arg(long, value_name = "NAME=VALUE", value_parser = command_line::pair)]
    requirement: Vec<(String, String)>,
    /// Only builds whose id, group, submitter, command or labels contain this text, in any case
    #[arg(long)]
    text: Option<String>,
    /// Continue an earlier list: the `next` of its output
    #[arg(long, value_name = "NEXT")]
    cursor: Option<String>,
    /// Maximum number of builds, newest first
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse_limit)]
    limit: usize,
    /// Show all columns, whole ids and whole commands, regardless of the line length
    #[arg(long)]
    wide: bool,
}

fn parse_outcome(text: &str) -> Result<Outcome, String> {
    let wanted = text.to_ascii_lowercase().replace('-', "_");
    let found = Outcome::ALL.into_iter().find(|outcome| outcome.as_str() == wanted);
    found.ok_or_else(|| format!("expected one of {}", Outcome::ALL.map(Outcome::as_str).join(", ")))
}

fn parse_state(text: &str) -> Result<State, String> {
    let wanted = text.to_ascii_uppercase().replace('-', "_");
    let all = [State::Enqueued, State::InProgress, State::Finished];
    let found = all.into_iter().find(|state| state.as_str() == wanted);
    found.ok_or_else(|| match parse_outcome(text) {
        Ok(outcome) => format!("this is an outcome: use --outcome {}", outcome.as_str()),
        Err(_) => "expected enqueued, in_progress or finished".to_owned(),
    })
}

fn parse_limit(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|limit| (1..=1000).contains(limit))
        .ok_or_else(|| "expected 1 to 1000".to_owned())
}

/// Lists recent builds, newest first.
pub(crate) async fn run(args: &LsArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let list = args.request(farm.now());
    let found = farm.call(async |client| client.builds(args.group.as_ref(), &list).await).await?;
    let ListReply { builds, truncated, next } = found;
    if globals.json {
        stdout::json(&ListReply { builds, truncated, next })?;
    } else if builds.is_empty() {
        stdout::line("no builds found")?;
    } else {
        let columns = if args.wide { None } else { Some(columns()) };
        stdout::line(&text(&builds, columns, farm.now()))?;
        if let Some(next) = next {
            say(&format!("older builds: add --cursor {next}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl LsArgs {
    fn request(&self, now: Millis) -> ListRequest {
        ListRequest {
            state: self.state,
            outcome: self.outcome,
            labels: self.label.iter().cloned().collect(),
            id_prefix: None,
            limit: Some(self.limit),
            priority: self.priority,
            submitter: self.submitter.clone(),
            since_ms: self.since.map(|moment| moment.before(now)),
            until_ms: self.until.map(|moment| moment.before(now)),
            requirements: self.requirement.iter().cloned().collect(),
            text: self.text.clone(),
            cursor: self.cursor.clone(),
        }
    }
}

/// Minimum characters of an id: they include the millisecond of its creation.
pub(crate) const ID_MIN: usize = 13;
/// Maximum characters of a group's name if lines are limited.
const GROUP_MAX: usize = 16;
/// Minimum characters of a command.
const COMMAND_MIN: usize = 12;
/// Spaces between two columns.
const GAP: usize = 2;

/// One line per build, each at most `columns` characters long if given.
fn text(builds: &[BuildView], columns: Option<usize>, now: Millis) -> String {
    let mut rows = match columns {
        None => wide(builds, now),
        Some(_) => narrow(builds, now),
    };
    if let Some(columns) = columns {
        // Each line begins with a space.
        fit(&mut rows, columns.saturating_sub(1));
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for row in &rows {
        table.add_row(row);
    }
    let rendered = table.trim_fmt();
    let mut lines = rendered.lines();
    let head = lines.next().map(ToOwned::to_owned);
    let painted = lines.zip(builds).map(|(line, view)| {
        // The first match is the state: it follows the id, which cannot contain it.
        let state = state_text(view);
        line.replacen(&state, &Tone::of(&view.record).stdout(&state), 1)
    });
    head.into_iter().chain(painted).collect::<Vec<_>>().join("\n")
}

fn narrow(builds: &[BuildView], now: Millis) -> Vec<Vec<String>> {
    let id_length = id_length(builds);
    let head = ["ID", "STATUS", "GROUP", "AGE", "TIME", "COMMAND"].map(ToOwned::to_owned).to_vec();
    let row = |view: &BuildView| {
        let build = &view.record.build;
        vec![
            build.id.to_string().chars().take(id_length).collect(),
            state_text(view),
            one_line(build.group.as_str(), GROUP_MAX),
            age(build.submitted_at_ms, now),
            time(view, now),
            one_line(&work_text(build), usize::MAX),
        ]
    };
    std::iter::once(head).chain(builds.iter().map(row)).collect()
}

fn wide(builds: &[BuildView], now: Millis) -> Vec<Vec<String>> {
    let head = ["ID", "STATUS", "GROUP", "PRIORITY", "AGE", "TIME", "LABELS", "COMMAND"];
    let row = |view: &BuildView| {
        let build = &view.record.build;
        let labels: Vec<String> =
            build.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        vec![
            build.id.to_string(),
            state_text(view),
            build.group.to_string(),
            build.priority.to_string(),
            age(build.submitted_at_ms, now),
            time(view, now),
            one_line(&labels.join(" "), usize::MAX),
            one_line(&work_text(build), usize::MAX),
        ]
    };
    std::iter::once(head.map(ToOwned::to_owned).to_vec()).chain(builds.iter().map(row)).collect()
}

/// Shortens the commands, and if necessary the groups, so that a line has at most `columns` characters.
fn fit(rows: &mut [Vec<String>], columns: usize) {
    let width = |rows: &[Vec<String>], at: usize| {
        rows.iter().filter_map(|row| row.get(at)).map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let fixed: usize = [0, 1, 3, 4].into_iter().map(|at| width(rows, at) + GAP).sum();
    let group =
        width(rows, GROUP_AT).min(columns.saturating_sub(fixed + GAP + COMMAND_MIN).max("GROUP".len()));
    let command = columns.saturating_sub(fixed + group + GAP).max(COMMAND_MIN);
    for row in rows {
        for (at, most) in [(GROUP_AT, group), (COMMAND_AT, command)] {
            match row.get_mut(at) {
                Some(text) => *text = one_line(text, most),
                None => {
                    impossible!("a row has no column {at}");
                }
            }
        }
    }
}

/// Index of the group in a row of [`narrow`].
const GROUP_AT: usize = 2;
/// Index of the command in a row of [`narrow`].
const COMMAND_AT: usize = 5;

/// Number of id characters that distinguish these builds.
fn id_length(builds: &[BuildView]) -> usize {
    let mut ids: Vec<String> = builds.iter().map(|view| view.record.build.id.to_string()).collect();
    ids.sort_unstable();
    let common = |pair: &[String]| match pair {
        [a, b] => a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count() + 1,
        _ => 0,
    };
    ids.windows(2).map(common).max().unwrap_or(0).max(ID_MIN)
}

/// The outcome if the build has ended, else its state.
pub(crate) fn state_text(view: &BuildView) -> String {
    let result = view.record.result();
    result.map_or_else(|| view.state.as_str().to_owned(), |result| outcome_text(result.outcome))
}

/// Run time of a build that has ended or is running, else the time in the queue.
pub(crate) fn time(view: &BuildView, now: Millis) -> String {
    seconds(seconds_of(view, now))
}

/// The time of [`time`] in seconds.
pub(crate) fn seconds_of(view: &BuildView, now: Millis) -> f64 {
    match (view.record.result(), view.record.invocation()) {
        (Some(result), _) => result.wall_seconds,
        (None, Some(run)) => now.since(run.started_at_ms).as_secs_f64(),
        (None, None) => now.since(view.record.queue.enqueued_at_ms).as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::{COMMAND_AT, GAP, Outcome, State, fit, parse_limit, parse_outcome, parse_state};

    #[test]
    fn states_are_read_as_people_write_them() {
        assert_eq!(parse_state("in-progress"), Ok(State::InProgress));
        assert_eq!(parse_state("FINISHED"), Ok(State::Finished));
        assert!(parse_state("done").unwrap_err().contains("enqueued"));
        assert!(parse_state("timed-out").unwrap_err().contains("--outcome timed_out"));
    }

    #[test]
    fn limits_are_the_api_s() {
        assert_eq!(parse_limit("1000"), Ok(1000));
        assert!(parse_limit("0").is_err() && parse_limit("1001").is_err());
    }

    #[test]
    fn outcomes_are_read_as_people_write_them() {
        assert_eq!(parse_outcome("timed-out"), Ok(Outcome::TimedOut));
        assert!(parse_outcome("ok").unwrap_err().contains("succeeded"));
    }

    #[test]
    fn lines_fit_the_terminal() {
        let row = |group: &str, command: &str| {
            ["01a202e7-1234", "IN_PROGRESS", group, "59m 59s", "59m 59s", command]
                .map(ToOwned::to_owned)
                .to_vec()
        };
        for columns in [80, 72, 200] {
            let mut rows = vec![row("a-group-of-sixt", &"x".repeat(300)), row("ci", "true")];
            fit(&mut rows, columns);
            let longest = rows.iter().map(|row| row.iter().map(String::len).sum::<usize>() + 5 * GAP).max();
            assert!(longest.unwrap() <= columns, "{rows:?}");
            assert_eq!(rows[1][COMMAND_AT], "true");
        }
    }
}
