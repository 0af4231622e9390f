//! Options of `forebay submit`.

use std::path::PathBuf;

use clap::Args;
use model::{BuildId, Digest, Esu, ExecutorType, Group, Priority, SecretRequest, parse_amount};

use crate::{follow::FollowArgs, job::JobArgs, remote::GatewayArgs};

const EXAMPLES: &str = "\
Examples:
  forebay submit -- echo hello
      queues a build and prints its id
  forebay submit --follow --dir . --output 'target/*.log' -- make test
      runs `make test` in a copy of this folder, shows its output and exits with the build's exit code
  forebay submit --follow --dir . --job tasks.yaml --output program
      runs a graph of tasks, each as an action on an executor, and keeps the output file
  forebay submit --git https://example.org/app.git --revision main --patch fix.diff \\
      --group ci --priority automated --timeout 10m --env CI=1 -- ./build.sh
      runs a script in a checkout of a revision with a patch applied

With --follow the exit code is the build's: 0 succeeded, 1 failed, 2 rejected, 3 cancelled or expired; with
--exit-code command it is the exit code of the command, or 128 + N if signal N killed it. Ctrl-C stops following; the
build continues.";

const USAGE: &str = "forebay submit [OPTIONS] -- COMMAND [ARGUMENT]...
       forebay submit [OPTIONS] --job FILE";

/// Options of `forebay submit`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate flag")]
pub(crate) struct SubmitArgs {
    /// Quota group of the build
    #[arg(long, default_value = "default")]
    pub(crate) group: Group,
    /// Priority: emergency, interactive, automated or batch [default: interactive]
    #[arg(long)]
    pub(crate) priority: Option<Priority>,
    /// Id of the build, a UUID; submitting the same id again has no effect [default: a new id]
    #[arg(long, value_name = "UUID")]
    pub(crate) id: Option<BuildId>,
    /// Run in a copy of this folder; files that the farm's store lacks are uploaded. Files get mode 0644, or 0755 if they
    /// are executable, and the current time; --worker-dir keeps modes, owners and times. All symlinks are kept. A file
    /// that cannot be read, or whose name is not UTF-8, is an error; pipes and sockets are left out
    #[arg(long, value_name = "DIR", group = "folder", conflicts_with_all = ["worker_dir", "git", "archive"])]
    pub(crate) dir: Option<PathBuf>,
    /// Run in a copy of this folder of the worker's machine
    #[arg(long, value_name = "PATH", group = "folder", conflicts_with_all = ["git", "archive"])]
    pub(crate) worker_dir: Option<PathBuf>,
    /// Exclude files that match the folder's .gitignore and .forebayignore files from the copy
    #[arg(long, requires = "folder")]
    pub(crate) ignore_files: bool,
    /// Run in a checkout of this git repository
    #[arg(long, value_name = "URL", requires = "revision", conflicts_with = "archive")]
    pub(crate) git: Option<String>,
    /// Commit, tag or branch to check out
    #[arg(long, requires = "git")]
    pub(crate) revision: Option<String>,
    /// Patch to apply to the checkout
    #[arg(long, value_name = "FILE", requires = "git")]
    pub(crate) patch: Option<PathBuf>,
    /// Run in this unpacked tar archive: a file visible to the worker, or an http(s) URL
    #[arg(long, value_name = "PATH|URL")]
    pub(crate) archive: Option<String>,
    /// Expected digest of the archive [default: computed for a file]
    #[arg(long, value_name = "sha256:HEX", requires = "archive")]
    pub(crate) archive_digest: Option<Digest>,
    /// Environment variable of the command (repeatable)
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// Maximum run time, e.g. 90s, 10m or 1h30m [default: from the settings]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<humantime::Duration>,
    /// Maximum time in the queue [default: from the settings]
    #[arg(long, value_name = "TIME")]
    pub(crate) queue_timeout: Option<humantime::Duration>,
    /// Maximum attempts if workers are lost [default: from the settings]
    #[arg(long, value_name = "N")]
    pub(crate) max_attempts: Option<u32>,
    /// Time after which the lease of an attempt expires without renewal [default: from the settings]
    #[arg(long, value_name = "TIME")]
    pub(crate) lease_ttl: Option<humantime::Duration>,
    /// Reuse a warm workspace from a similar build and keep this one for the next
    #[arg(long)]
    pub(crate) warm: bool,
    /// Start in an empty workspace, also where the farm reuses warm ones by default
    #[arg(long, conflicts_with = "warm")]
    pub(crate) fresh: bool,
    /// Branch of the code repository (used to match warm workspaces)
    #[arg(long, value_name = "NAME")]
    pub(crate) branch: Option<String>,
    /// Build tool version (used to match warm workspaces)
    #[arg(long, value_name = "VERSION")]
    pub(crate) tool_version: Option<String>,
    /// Target of the build (repeatable) [default: read from the command]
    #[arg(long, value_name = "TARGET")]
    pub(crate) target: Vec<String>,
    /// Flag of the build tool, e.g. --flag=--config=asan (repeatable) [default: read from the command]
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub(crate) flag: Vec<String>,
    /// Tag of the build's targets (repeatable; used to predict executor types)
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Vec<String>,
    /// Rule kind of the build's targets (repeatable; used to predict executor types)
    #[arg(long, value_name = "RULE")]
    pub(crate) rule: Vec<String>,
    /// Executor type that the build uses in addition to x86 (repeatable)
    #[arg(long, value_name = "TYPE")]
    pub(crate) executor_type: Vec<ExecutorType>,
    /// ESU that the build will occupy of an executor type, e.g. x86=4 (repeatable) [default: predicted]
    #[arg(long, value_name = "TYPE=ESU", value_parser = parse_amount)]
    pub(crate) esu: Vec<(ExecutorType, Esu)>,
    /// Property that the worker must offer, e.g. hwgroup=a|b (repeatable); `forebay workers` lists what is on offer
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) requirement: Vec<String>,
    /// Secret of the group that the command gets: in an environment variable, or in a file of the folder
    /// `$FOREBAY_SECRETS_DIR` (repeatable). Only workers know its value
    #[arg(long, value_name = "NAME[=VARIABLE]", conflicts_with = "file")]
    pub(crate) secret: Vec<SecretRequest>,
    /// Run the services in this YAML or JSON file, a list, beside the command
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    pub(crate) services: Option<PathBuf>,
    /// Limit on the resources of the build (repeatable): `memory_bytes`, `processes`, `cpu_millis`, `disk_bytes` or
    /// `output_bytes`
    #[arg(long, value_name = "NAME=NUMBER")]
    pub(crate) limit: Vec<String>,
    /// Output files to keep, a glob relative to the workspace (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub(crate) output: Vec<String>,
    /// Fail the build if an --output matches no file [default: warn]
    #[arg(long, requires = "output")]
    pub(crate) require_outputs: bool,
    /// Submitter; run time is estimated from this submitter's earlier builds
    #[arg(long, value_name = "NAME")]
    pub(crate) submitter: Option<String>,
    /// Label to show and filter by (repeatable)
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) label: Vec<String>,
    /// Show states and output until the build ends, and exit with the build's exit code
    #[arg(long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) following: FollowArgs,
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Program and arguments to run
    #[arg(required_unless_present = "file", trailing_var_arg = true)]
    pub(crate) command: Vec<String>,
}
