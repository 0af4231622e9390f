//! Sets up logs and traces, and flushes spans at the end.

use std::fmt::Arguments;
use std::panic::Location;
use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use crate::error::error_chain;
use crate::log::{self, LogFormat};
use crate::settings::Settings;
use crate::{metrics, otlp};

/// Maximum time that flushing may take.
const FLUSH: Duration = Duration::from_secs(2);

/// Libraries below the exporter: exporting their spans would cause further spans without end.
const FOREIGN: [&str; 6] = ["h2", "hyper", "opentelemetry", "reqwest", "rustls", "tower"];

static TRACER: OnceLock<SdkTracer> = OnceLock::new();

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
        return Guard { provider: None };
    }
    metrics::set_service(settings.service);
    invariant::report_with(report_breach);
    let (filter, warning) = log::filter(&settings.filter);
    settings.warnings.extend(warning);

    let provider = match settings.traces.as_ref().map(|traces| otlp::provider(&settings, traces)) {
        Some(Ok(provider)) => Some(provider),
        Some(Err(error)) => {
            settings.warnings.push(format!("tracing is off: {}", error_chain(&error)));
            None
        }
        None => None,
    };
    let file = settings.file.as_deref().map(log::file_layer).transpose().unwrap_or_else(|error| {
        settings.warnings.push(format!("no log file is written: {}", error_chain(&error)));
        None
    });
    let installed = match &provider {
        None if file.is_some() => tracing_subscriber::registry()
            .with(file)
            .with(log::layer(settings.log).with_filter(filter))
            .try_init(),
        // One filter for everything is cheaper than a filter for each layer.
        None => tracing_subscriber::registry().with(filter).with(log::layer(settings.log)).try_init(),
        Some(provider) => install_traced(filter, settings.log, file, provider),
    };
    let guard = Guard { provider };
    if installed.is_err() {
        return Guard { provider: None };
    }
    for warning in settings.warnings {
        tracing::warn!("{warning}");
    }
    guard
}

/// Logs and counts a state that the program rules out.
fn report_breach(site: &'static Location<'static>, what: Arguments<'_>) {
    let place = format!("{}:{}", site.file(), site.line());
    tracing::error!(%place, "impossible: {what}; please report this bug");
    metrics::count(metrics::Counter::InvariantBreaches, &[(metrics::Label::Site, &place)], 1);
}

fn install_traced(
    filter: tracing_subscriber::EnvFilter,
    log: LogFormat,
    file: Option<log::BoxedLayer>,
    provider: &SdkTracerProvider,
) -> Result<(), TryInitError> {
    let tracer = provider.tracer("forebay");
    let spans = tracing_opentelemetry::layer()
        .with_tracer(tracer.clone())
        .with_context_activation(false)
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(FilterFn::new(exported).with_max_level_hint(LevelFilter::DEBUG));
    let logs = log::layer(log).with_filter(filter);
    tracing_subscriber::registry().with(file).with(logs).with(spans).try_init()?;
    // Never set twice: try_init succeeds for only one caller.
    let _ = TRACER.set(tracer);
    Ok(())
}

/// Spans are exported down to debug, events (as events of their span) down to info.
fn exported(metadata: &Metadata<'_>) -> bool {
    let lowest = if metadata.is_span() { Level::DEBUG } else { Level::INFO };
    *metadata.level() <= lowest && !FOREIGN.iter().any(|name| metadata.target().starts_with(name))
}

/// Whether spans are exported.
pub fn trace_enabled() -> bool {
    TRACER.get().is_some()
}

/// The tracer of the process, when tracing is on.
pub(crate) fn tracer() -> Option<&'static SdkTracer> {
    TRACER.get()
}

/// Flushes the spans still in memory when it is dropped, for at most two seconds.
#[derive(Debug)]
#[must_use = "spans still in memory are lost unless the guard lives until the end"]
pub struct Guard {
    provider: Option<SdkTracerProvider>,
}

impl Guard {
    /// Flushes without blocking the thread, for at most two seconds.
    pub async fn shutdown(mut self) {
        let Some(provider) = self.provider.take() else { return };
        let (done, wait) = tokio::sync::oneshot::channel();
        // A separate thread also works without a runtime, where spawn_blocking does not.
        let spawned = std::thread::Builder::new().name("telemetry-flush".to_owned()).spawn(move || {
            flush(&provider);
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
        if let Some(provider) = self.provider.take() {
            flush(&provider);
        }
    }
}

fn flush(provider: &SdkTracerProvider) {
    if let Err(error) = provider.shutdown_with_timeout(FLUSH) {
        tracing::warn!("the last spans may be lost: {}", error_chain(&error));
    }
}

#[cfg(test)]
pub(crate) fn guard_of(provider: SdkTracerProvider) -> Guard {
    Guard { provider: Some(provider) }
}
