//! `forebay watch`: follows a build until it ends.

use std::process::ExitCode;

use build_events::EventName;
use clap::Args;
use client::{WatchFilter, WatchKind};
use command_line::{failure::Failure, globals::Globals};
use model::{OutputStream, Sequence, TaskId};
use settings::Settings;

use crate::{
    farm::{BuildArgs, Farm},
    follow::{self, FollowArgs},
};

const EXAMPLES: &str = "\
Examples:
  forebay watch 0198c5b2-9d53-7c12-b3a5-3f0f6c1d2e4f
      shows states, queue position and output from the start until the build ends, and exits with the build's exit code
  forebay watch @last --exit-code command
      follows the build that you submitted last; exits with the exit code of its command
  forebay watch ID --positions; forebay watch ID --from 1234
      shows the position of every event; continues after position 1234
  forebay watch ID --kind lifecycle --json
      prints one JSON object per line, states only
  forebay watch ID --kind console --stream stderr; forebay watch ID --kind bazel --event testResult
      shows errors only; shows results of tests only";

/// Options of `forebay watch`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    build: BuildArgs,
    /// Show only events after this position
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    from: u64,
    /// Show only events of this kind: lifecycle, console, tool, bazel or queue, the queue position while waiting
    /// (repeatable) [default: all kinds]
    #[arg(long)]
    kind: Vec<WatchKind>,
    /// Of the output, show only this stream: stdout or stderr [default: both]
    #[arg(long)]
    stream: Option<OutputStream>,
    /// Of the worker's events, show only reports of this task of a job (repeatable)
    #[arg(long, value_name = "ID")]
    task: Vec<TaskId>,
    /// Of Bazel's build events, show only these, for example testResult (repeatable)
    #[arg(long, value_name = "NAME")]
    event: Vec<EventName>,
    #[command(flatten)]
    follow: FollowArgs,
}

/// Follows the build until it ends.
pub(crate) async fn run(
    args: WatchArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let key = farm.resolve(&args.build).await?;
    let from = Sequence(args.from);
    let filter =
        WatchFilter { kinds: args.kind, stream: args.stream, tasks: args.task, build_events: args.event };
    follow::follow(&farm, (globals, settings), &args.follow, &key, (from, &filter)).await
}
