//! The setup before a command runs: settings, logs, threads.

use std::process::ExitCode;

use settings::{LogFormat, Settings};
use tokio::runtime::Builder;

use crate::{failure::Failure, globals::Globals};

/// Stack of each thread, enough for parsers that recurse to their limits of nesting.
const STACK_BYTES: usize = 8 << 20;

/// What a process logs if `FOREBAY_LOG` does not say it.
#[derive(Debug)]
pub struct Log {
    pub filter: &'static str,
    /// File in the data folder that has the log, instead of stderr.
    pub file: Option<&'static str>,
}

/// How a command runs.
#[derive(Debug)]
pub struct Process {
    /// Name of the process in logs and traces.
    pub name: &'static str,
    pub log: Log,
    /// A command that contacts no farm has the default settings: it must not fail because of an invalid settings file.
    pub asks_a_farm: bool,
    /// Whether one thread runs everything.
    pub is_one_loop: bool,
}

impl Process {
    /// Runs the command to completion.
    pub fn run(
        self,
        globals: &Globals,
        command: impl AsyncFnOnce(Settings) -> Result<ExitCode, Failure>,
    ) -> Result<ExitCode, Failure> {
        let settings = if self.asks_a_farm { globals.settings()? } else { Settings::default() };
        let log = match settings.log_format {
            LogFormat::Json => telemetry::LogFormat::Json,
            LogFormat::Text => telemetry::LogFormat::Text,
        };
        let instance = format!("{}-{}", self.name, std::process::id());
        let mut telemetry = telemetry::Settings::from_env(self.name, &instance, log);
        if std::env::var_os("FOREBAY_LOG").is_none() {
            self.log.filter.clone_into(&mut telemetry.filter);
            telemetry.file = self.log.file.map(|file| settings.data.join(file));
        }
        // `up` has already warned about names without effect, which its services read too.
        if std::env::var_os("FOREBAY_LISTEN_FILE").is_none() {
            let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
            telemetry.warnings.extend(settings::unknown_variables(names));
            if self.asks_a_farm {
                telemetry.warnings.extend(settings::earlier_names(&globals.settings_file()));
            }
        }
        let guard = telemetry::init_with(telemetry);
        let mut threads =
            if self.is_one_loop { Builder::new_current_thread() } else { Builder::new_multi_thread() };
        let runtime = threads.thread_stack_size(STACK_BYTES).enable_all().build();
        let runtime = runtime.map_err(|error| Failure::new(1, "cannot start threads", &error))?;
        let code = runtime.block_on(command(settings));
        // A blocking read from a terminal or a slow disk must not delay the exit of a finished command.
        runtime.shutdown_background();
        drop(guard);
        code
    }
}
