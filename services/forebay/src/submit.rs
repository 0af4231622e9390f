//! `forebay submit`

use std::{
    io::{IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use model::{BuildId, BuildKey, Digest, Esu, ExecutorType, Group, Priority, Sequence};
use settings::Settings;
use tracing::Instrument as _;

use crate::{
    failure::{Failure, say},
    farm::Farm,
    follow::{self, FollowArgs},
    globals::Globals,
    job::{self, JobArgs},
    request::build_request,
    stdout,
};

const EXAMPLES: &str = "\
Examples:
  forebay submit -- echo hello
      queues a build and prints its id
  forebay submit --follow --dir . --output 'target/*.log' -- make test
      runs `make test` in a copy of this folder, shows its output and exits as it does
  forebay submit --follow --dir . --job tasks.yaml --output program
      runs a graph of tasks, each as an action on some executor, and keeps what they made
  forebay submit --git https://example.org/app.git --revision main --patch fix.diff \\
      --group ci --priority automated --timeout 10m --env CI=1 -- ./build.sh
      runs a script at a revision with a patch on top

With --follow the exit code is the build's: 0 succeeded, 1 failed, 2 refused, 3 cancelled or expired; with
--exit-code command it is that of the command, 128 + N when signal N killed it. Ctrl-C only stops following; the build goes on.";

const USAGE: &str = "forebay submit [OPTIONS] -- COMMAND [ARGUMENT]...
       forebay submit [OPTIONS] --job FILE";

/// Options of `forebay submit`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct SubmitArgs {
    /// The quota group
    #[arg(long, default_value = "default")]
    pub(crate) group: Group,
    /// emergency, interactive, automated or batch [default: interactive]
    #[arg(long)]
    pub(crate) priority: Option<Priority>,
    /// The build's id, a UUID: the same id again is the same build [default: a new one]
    #[arg(long, value_name = "UUID")]
    id: Option<BuildId>,
    /// Run in a copy of this folder, which the worker must see
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["git", "archive"])]
    pub(crate) dir: Option<PathBuf>,
    /// Leave out of the copy what the folder's .gitignore and .forebayignore files name
    #[arg(long, requires = "dir")]
    pub(crate) ignore_files: bool,
    /// Run in a checkout of this git repository
    #[arg(long, value_name = "URL", requires = "revision", conflicts_with = "archive")]
    pub(crate) git: Option<String>,
    /// The commit, tag or branch
    #[arg(long, requires = "git")]
    pub(crate) revision: Option<String>,
    /// A patch to apply on top
    #[arg(long, value_name = "FILE", requires = "git")]
    pub(crate) patch: Option<PathBuf>,
    /// Run in this unpacked tar archive, a file that the worker sees or an http(s) URL
    #[arg(long, value_name = "PATH|URL")]
    pub(crate) archive: Option<String>,
    /// What the archive must hash to [default: computed, for a file]
    #[arg(long, value_name = "sha256:HEX", requires = "archive")]
    pub(crate) archive_digest: Option<Digest>,
    /// An environment variable of the command; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// How long it may run, as 90s, 10m or 1h30m [default: a setting]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<humantime::Duration>,
    /// How long it may wait in the queue [default: a setting]
    #[arg(long, value_name = "TIME")]
    pub(crate) queue_timeout: Option<humantime::Duration>,
    /// How many workers may be lost under it before it is given up [default: a setting]
    #[arg(long, value_name = "N")]
    pub(crate) max_attempts: Option<u32>,
    /// How long the lease of a run lives without renewal [default: a setting]
    #[arg(long, value_name = "TIME")]
    pub(crate) lease_ttl: Option<humantime::Duration>,
    /// Start in the workspace that a similar build left, if there is one, and leave this one's to the next
    #[arg(long)]
    pub(crate) warm: bool,
    /// The branch of the code repository, by which a warm workspace is found
    #[arg(long, value_name = "NAME")]
    pub(crate) branch: Option<String>,
    /// The version of the build tool, by which a warm workspace is found
    #[arg(long, value_name = "VERSION")]
    pub(crate) tool_version: Option<String>,
    /// A target of the build [default: read from the command]; may be repeated
    #[arg(long, value_name = "TARGET")]
    pub(crate) target: Vec<String>,
    /// A flag of the build, as --flag=--config=asan [default: read from the command]; may be repeated
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub(crate) flag: Vec<String>,
    /// A tag of the build's targets, which may tell the executor types that it uses; may be repeated
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Vec<String>,
    /// A rule of the build's targets, which may tell the executor types that it uses; may be repeated
    #[arg(long, value_name = "RULE")]
    pub(crate) rule: Vec<String>,
    /// An executor type that it uses, besides x86; may be repeated
    #[arg(long, value_name = "TYPE")]
    pub(crate) executor_type: Vec<ExecutorType>,
    /// ESU of an executor type that it will occupy, as x86=4 [default: predicted]; may be repeated
    #[arg(long, value_name = "TYPE=ESU", value_parser = crate::request::amount)]
    pub(crate) esu: Vec<(ExecutorType, Esu)>,
    /// Files to keep, a glob relative to the workspace; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub(crate) output: Vec<String>,
    /// Fail the build when an --output matches no file [default: warn]
    #[arg(long, requires = "output")]
    pub(crate) require_outputs: bool,
    /// Who asks for it, by whatever name; how long it takes is estimated from earlier builds of the same
    #[arg(long, value_name = "NAME")]
    pub(crate) submitter: Option<String>,
    /// A label to show; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) label: Vec<String>,
    /// Show its states and output until it ends, and exit as it does
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    following: FollowArgs,
    #[command(flatten)]
    job: JobArgs,
    /// The program and its arguments
    #[arg(required_unless_present = "file", trailing_var_arg = true)]
    pub(crate) command: Vec<String>,
}

/// Queues the build.
pub(crate) async fn run(
    args: &SubmitArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let id = args.id.unwrap_or_else(BuildId::generate);
    let mut request = build_request(args, id)?;
    if let Some(hint) = shell_hint(&args.command) {
        say(&hint);
    }
    let job = args.job.read()?;
    let farm = Farm::connect(globals, settings).await?;
    if let Some(job) = job {
        request.job = Some(job::source(&farm, settings, job).await?);
    }
    let key = BuildKey { group: args.group.clone(), id };
    // A trace that whoever called us started goes on.
    let outer = std::env::var("TRACEPARENT").ok().filter(|text| telemetry::is_valid_traceparent(text));
    let span = tracing::info_span!("submit", build = %key);
    telemetry::set_parent(&span, outer.as_deref(), None);
    let trace = telemetry::context_of(&span).map(|context| context.traceparent).or(outer);
    let create = farm.call(async |client| client.create(&key.group, &request, trace.as_deref()).await);
    let reply = create.instrument(span).await?;
    farm.last().remember(&key);
    if args.follow {
        if !globals.json {
            // Before the first event: what a log shows can then be asked about.
            say_build(&key);
        }
        return follow::follow(&farm, globals, &args.following, &key, (Sequence(0), &[])).await;
    }
    if globals.json {
        stdout::json(&reply)?;
    } else {
        stdout::line(&reply.id.to_string())?;
        // A person may take the id for success; a script reads no stderr of a terminal.
        if std::io::stderr().is_terminal() {
            say("it is queued; how it goes on: forebay watch @last");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn say_build(key: &BuildKey) {
    let _ = writeln!(std::io::stderr(), "build {} in group {}", key.id, key.group);
}

/// What to say of a command that looks like a line for a shell.
pub(crate) fn shell_hint(command: &[String]) -> Option<String> {
    let [line] = command else { return None };
    let is_line = line.contains(char::is_whitespace) && !Path::new(line).exists();
    is_line.then(|| {
        format!("{line:?} is taken as the name of one program; a line for a shell is: -- sh -c {line:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::shell_hint;

    #[test]
    fn a_line_for_a_shell_is_recognized() {
        let hint =
            |words: &[&str]| shell_hint(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert!(hint(&["echo hi | wc"]).unwrap().contains("sh -c"));
        assert_eq!(hint(&["true"]), None);
        assert_eq!(hint(&["echo", "a b"]), None);
        assert_eq!(hint(&[]), None);
    }
}
