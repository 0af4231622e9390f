//! Sets up logs and traces, and flushes spans at the end.

use std::fmt::Arguments;
use std::panic::Location;
use std::time::Duration;

use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::error::error_chain;
use crate::log::{self, LogFormat};
use crate::settings::Settings;
use crate::{metrics, spans};

/// Maximum time that flushing may take.
const FLUSH: Duration = Duration::from_secs(2);

/// Sets up logs and traces from the environment. See [`init_with`].
pub fn init(service: &'static str, instance: &str, log: LogFormat) -> Guard {
    init_with(Settings::from_env(service, instance, log))
}

/// Sets up logs and traces for the whole process.
///
/// Never fails: a part that cannot be set up is logged and left out. A second call in one process changes nothing and
/// returns a guard without effect.
pub fn init_with(mut settings: Settings) -> Guard {
    if tracing::dispatcher::has_been_set() {
        tracing::debug!("logs and traces are already set up");
        return Guard { flush: false };
    }
    metrics::set_service(settings.service);
    invariant::report_with(report_breach);
    let (filter, warning) = log::filter(&settings.filter);
    settings.warnings.extend(warning);

    let file = settings.file.as_deref().map(log::file_layer).transpose().unwrap_or_else(|error| {
        settings.warnings.push(format!("no log file is written: {}", error_chain(&error)));
        None
    });
    let logs = log::layer(settings.log);
    let installed = match file {
        Some(_) => tracing_subscriber::registry().with(file).with(logs.with_filter(filter)).try_init(),
        // One filter for everything is cheaper than a filter for each layer.
        None => tracing_subscriber::registry().with(filter).with(log::layer(settings.log)).try_init(),
    };
    if installed.is_err() {
        return Guard { flush: false };
    }
    if let Some(traces) = &settings.traces
        && let Err(error) = spans::start(&settings, traces)
    {
        settings.warnings.push(format!("tracing is off: {}", error_chain(&error)));
    }
    for warning in settings.warnings {
        tracing::warn!("{warning}");
    }
    Guard { flush: true }
}

/// Logs and counts a state that the program rules out.
fn report_breach(site: &'static Location<'static>, what: Arguments<'_>) {
    let place = format!("{}:{}", site.file(), site.line());
    tracing::error!(%place, "impossible: {what}; please report this bug");
    metrics::count(metrics::Counter::InvariantBreaches, &[(metrics::Label::Site, &place)], 1);
}

/// Flushes the spans still in memory when it is dropped, for at most two seconds.
#[derive(Debug)]
#[must_use = "spans still in memory are lost unless the guard lives until the end"]
pub struct Guard {
    flush: bool,
}

impl Guard {
    /// Flushes without blocking the thread, for at most two seconds.
    pub async fn shutdown(mut self) {
        if !std::mem::take(&mut self.flush) {
            return;
        }
        let (done, wait) = tokio::sync::oneshot::channel();
        // A separate thread also works without a runtime, where spawn_blocking does not.
        let spawned = std::thread::Builder::new().name("telemetry-flush".to_owned()).spawn(move || {
            flush();
            // The caller may have stopped waiting.
            let _ = done.send(());
        });
        if spawned.is_ok() {
            // Fails if the thread has panicked: the last spans are lost then.
            let _ = wait.await;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.flush {
            flush();
        }
    }
}

fn flush() {
    if let Some(exporter) = spans::exporter()
        && !exporter.flush(FLUSH)
    {
        tracing::warn!("the last spans are lost: the collector did not take them within {FLUSH:?}");
    }
}
