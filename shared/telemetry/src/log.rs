//! Log lines on stderr and in a file.

use std::fs;
use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::Mutex;

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry, fmt};

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines of text, in colour on a terminal.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The layer that writes log lines.
pub(crate) fn layer<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    // Internal errors are reported by eprintln!, which panics when stderr is a closed pipe.
    let layer = fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    match format {
        LogFormat::Text => {
            let colour =
                std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
            Box::new(layer.with_ansi(colour))
        }
        LogFormat::Json => Box::new(layer.json().flatten_event(true).with_span_list(false)),
    }
}

/// A log layer in addition to that for stderr.
pub(crate) type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The layer that writes log lines to a file, which is created with its folder if it is missing.
pub(crate) fn file_layer(path: &Path) -> std::io::Result<BoxedLayer> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let file = fs::OpenOptions::new().create(true).append(true).open(path)?;
    let layer = fmt::layer().with_writer(Mutex::new(file)).log_internal_errors(false).with_ansi(false);
    Ok(Box::new(layer.with_filter(LevelFilter::INFO)))
}

/// The filter of log lines, and a warning if `directives` are invalid.
pub(crate) fn filter(directives: &str) -> (EnvFilter, Option<String>) {
    match EnvFilter::try_new(directives) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("info"), Some(format!("log filter {directives:?} ignored: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[test]
    fn a_broken_filter_falls_back() {
        assert!(filter("info,worker=debug").1.is_none());
        let (fallback, warning) = filter("info,worker=[");
        assert_eq!(fallback.to_string(), "info");
        assert!(warning.unwrap().contains("ignored"));
    }
}
