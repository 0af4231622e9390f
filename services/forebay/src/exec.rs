//! `forebay exec`: runs one command as an action.

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use command_line::{
    failure::{FAILED, Failure, SUCCEEDED, say},
    globals::Globals,
    stdout,
};
use invariant::Present as _;
use model::BlobDigest;
use parking_lot::Mutex;
use policy::actions::may_have_image;
use reapi::execution::{
    Action, Command, ExecuteOperationMetadata, Platform, command::EnvironmentVariable, execution_stage,
    platform::Property,
};
use remote::{Executed, Meter, Remote, action_of, image_fetch};
use settings::Settings;

use crate::{
    context_folder::existing_folder,
    exec_outputs,
    exit_code::ExitCodeOf,
    progress::{Progress, When},
    remote::RemoteArgs,
    submit::shell_hint,
};

/// Examples shown below the options.
pub(crate) const EXAMPLES: &str = "\
Examples:
  forebay exec -- uname -a
  forebay exec --input 'src/**' --output out/ -- make -C src
      uploads src/, runs make on the farm, and downloads out/";

/// Options of `forebay exec`.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Folder to read inputs from and write outputs to
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Glob of input files in that folder, e.g. 'src/**' (repeatable) [default: no inputs]
    #[arg(long, short, value_name = "GLOB")]
    input: Vec<String>,
    /// Outputs to download: a file, a folder, or a glob below a folder, e.g. 'out/**/*.o' (repeatable)
    #[arg(long, short, value_name = "GLOB")]
    output: Vec<String>,
    /// Environment variable of the command (repeatable); the command gets no others from your environment
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = command_line::pair)]
    env: Vec<(String, String)>,
    /// Platform property that the executor must have (repeatable)
    #[arg(long, value_name = "NAME=VALUE", value_parser = command_line::pair)]
    platform: Vec<(String, String)>,
    /// Maximum run time, e.g. 90s or 10m [default: from the settings of the server]
    #[arg(long, value_name = "TIME")]
    timeout: Option<humantime::Duration>,
    /// Priority of the action; lower values start sooner
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Run the command even if its result is cached, and do not cache the result
    #[arg(long)]
    no_cache: bool,
    /// Meaning of the exit code: outcome of the action, or exit code of the command
    #[arg(long, value_name = "OF", value_enum, default_value_t)]
    exit_code: ExitCodeOf,
    /// Fail if the command did not create every --output
    #[arg(long, requires = "output")]
    require_outputs: bool,
    /// When to show progress
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    progress: When,
    /// Command and arguments to run
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The object that `--json` prints.
#[derive(Debug, serde::Serialize)]
struct Report {
    action: BlobDigest,
    operation: String,
    exit_code: i32,
    cached: bool,
    executor: String,
    stdout: String,
    stderr: String,
    outputs: Vec<String>,
    /// The `--output` patterns that matched nothing.
    missing_outputs: Vec<String>,
}

/// Runs the command on the farm and downloads its outputs.
pub(crate) async fn run(args: ExecArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let wanted = exec_outputs::RequestedOutputs::new(&args.output)?;
    existing_folder(&args.dir)?;
    let progress = Progress::new(args.progress);
    progress.phase("reading the inputs".to_owned());
    let (root, inputs) = transfer::scan(&args.dir, &args.input, args.remote.function()).await?;
    let remote = args.remote.connect(globals, settings).await?;
    let (digest, mut blobs) =
        action_of(args.remote.function(), &command(&args, &wanted), action(&args), &root);
    blobs.extend(inputs);
    let meter = Arc::<Meter>::default();
    let uploading = remote.upload_with_progress(&blobs, &meter);
    progress.transfer("uploading the inputs", &meter, uploading).await?;
    let executed = execute(&remote, &digest, &args, &progress).await?;
    Finish { remote: &remote, args: &args, wanted: &wanted, progress: &progress }
        .run(digest, executed, globals)
        .await
}

fn command(args: &ExecArgs, wanted: &exec_outputs::RequestedOutputs) -> Command {
    let mut variables: Vec<EnvironmentVariable> = args
        .env
        .iter()
        .map(|(name, value)| EnvironmentVariable { name: name.clone(), value: value.clone() })
        .collect();
    // An image has its own.
    let has_image = may_have_image(args.platform.iter().map(|(name, _)| name.as_str()));
    if !has_image && !variables.iter().any(|variable| variable.name == "PATH") {
        let value = "/usr/local/bin:/usr/bin:/bin".to_owned();
        variables.push(EnvironmentVariable { name: "PATH".to_owned(), value });
    }
    variables.sort_by(|a, b| a.name.cmp(&b.name));
    Command {
        arguments: args.command.clone(),
        environment_variables: variables,
        output_paths: wanted.paths(),
        ..Command::default()
    }
}

fn action(args: &ExecArgs) -> Action {
    let mut properties: Vec<Property> = args
        .platform
        .iter()
        .map(|(name, value)| Property { name: name.clone(), value: value.clone() })
        .collect();
    properties.sort_by(|a, b| (&a.name, &a.value).cmp(&(&b.name, &b.value)));
    let timeout = args.timeout.map(|timeout| {
        let timeout: Duration = timeout.into();
        reapi::protobuf::Duration {
            seconds: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(timeout.subsec_nanos()).present("nanoseconds below a second"),
        }
    });
    Action {
        timeout,
        do_not_cache: args.no_cache,
        platform: (!properties.is_empty()).then_some(Platform { properties }),
        ..Action::default()
    }
}

/// Waits for the result; Ctrl-C cancels the execution.
async fn execute(
    remote: &Remote,
    action: &BlobDigest,
    args: &ExecArgs,
    shown: &Progress,
) -> Result<Executed, Failure> {
    let operation = Mutex::new(String::new());
    let mut reported = None;
    let mut phase = None;
    let progress = |name: &str, metadata: &ExecuteOperationMetadata| {
        name.clone_into(&mut operation.lock());
        let reason = exec_outputs::reason(metadata);
        let queued = metadata.stage == i32::from(execution_stage::Value::Queued);
        if queued
            && reported != reason
            && let Some(text) = &reason
        {
            shown.rest();
            say(text);
            reported = reason;
        }
        let now = exec_outputs::phase(metadata);
        if phase != now
            && let Some(line) = &now
        {
            if image_fetch(metadata).is_some() {
                shown.count(line.clone());
            } else {
                shown.phase(line.clone());
            }
        }
        phase = now;
    };
    tokio::select! {
        executed = remote.execute(action, args.no_cache, args.priority, progress) => Ok(executed?),
        _ = tokio::signal::ctrl_c() => {
            let name = operation.lock().clone();
            if !name.is_empty() {
                remote.cancel(&name).await?;
            }
            Err(Failure::plain(command_line::failure::CANCELLED, "cancelled"))
        }
    }
}

/// The steps after the end of the action.
struct Finish<'a> {
    remote: &'a Remote,
    args: &'a ExecArgs,
    wanted: &'a exec_outputs::RequestedOutputs,
    progress: &'a Progress,
}

impl Finish<'_> {
    async fn run(
        self,
        action: BlobDigest,
        executed: Executed,
        globals: &Globals,
    ) -> Result<ExitCode, Failure> {
        let Self { remote, args, wanted, progress } = self;
        progress.rest();
        let Executed { operation, response } = executed;
        let result = response.result.unwrap_or_default();
        let (out, err) = exec_outputs::console(remote, &result).await?;
        if !globals.json {
            stdout::bytes(&out)?;
            // A closed stderr is not a failure.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), &err);
        }
        let status = response.status.unwrap_or_default();
        let has_failed = status.code != 0 || result.exit_code != 0;
        if has_failed && !globals.json {
            for line in exec_outputs::service_logs(remote, &response.server_logs) {
                say(&line);
            }
        }
        if status.code != 0 {
            let hint = shell_hint(&args.command).map(|hint| format!("; {hint}")).unwrap_or_default();
            return Err(Failure::plain(FAILED, format!("{}{hint}", status.message)));
        }
        if response.cached_result {
            progress.note("cached: result of an earlier run");
        }
        let meter = Meter::default();
        let fetching = exec_outputs::fetch(remote, &result, &args.dir, wanted, &meter);
        let downloaded = progress.transfer("downloading the outputs", &meter, fetching).await?;
        let missing_outputs = wanted.missing(&downloaded);
        for missing in &missing_outputs {
            let weight = if args.require_outputs { "failed" } else { "warning" };
            say(&format!("{weight}: the command created no output {missing:?}"));
        }
        let exit_code = result.exit_code;
        if globals.json {
            stdout::json(&Report {
                action,
                operation,
                exit_code,
                cached: response.cached_result,
                executor: result.execution_metadata.map(|it| it.worker).unwrap_or_default(),
                stdout: String::from_utf8_lossy(&out).into_owned(),
                stderr: String::from_utf8_lossy(&err).into_owned(),
                outputs: downloaded.paths,
                missing_outputs: missing_outputs.clone(),
            })?;
        } else if exit_code != 0 {
            say(&format!("the command ended with exit code {exit_code}"));
        }
        if exit_code != 0
            && let Some(hint) = shell_hint(&args.command)
        {
            say(&hint);
        }
        let complete = missing_outputs.is_empty() || !args.require_outputs;
        let outcome = if exit_code == 0 && complete { SUCCEEDED } else { FAILED };
        Ok(ExitCode::from(args.exit_code.exit_code(Some(exit_code), outcome)))
    }
}
