//! Settings of logs and traces from the environment.
//!
//! The OpenTelemetry crates read some of the standard variables on their own: `OTEL_RESOURCE_ATTRIBUTES`,
//! `OTEL_EXPORTER_OTLP_[TRACES_]HEADERS`, `_COMPRESSION` (`gzip`) and `_CERTIFICATE`. The others are read here.

use std::path::PathBuf;
use std::time::Duration;

use crate::log::LogFormat;
use crate::sampler::Sampler;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of logs and traces for [`init_with`](crate::init_with).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the service, without the `forebay-` prefix.
    pub service: &'static str,
    /// Name of this process among those of the same service.
    pub instance: String,
    /// Format of log lines.
    pub log: LogFormat,
    /// Filter of log lines, in the syntax of `tracing-subscriber`'s `EnvFilter`.
    pub filter: String,
    /// File that receives all log lines down to info, whatever `filter` is.
    pub file: Option<PathBuf>,
    /// Destination of spans; none switches tracing off.
    pub traces: Option<Traces>,
    /// Warnings about the settings, logged once logging works.
    pub warnings: Vec<String>,
}

/// Destination of exported spans.
#[derive(Clone, Debug, PartialEq)]
pub struct Traces {
    /// Full URL that accepts OTLP protobuf by POST, or the URL of a gRPC server.
    pub endpoint: String,
    pub protocol: Protocol,
    /// Maximum duration of one export.
    pub timeout: Duration,
    pub batches: Batches,
    pub sampler: Sampler,
    /// Overrides the service name `forebay-<service>`.
    pub service_name: Option<String>,
}

/// How spans are sent to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP protobuf over HTTP.
    Http,
    /// OTLP protobuf over gRPC.
    Grpc,
}

/// How spans are collected for export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    /// Maximum number of spans that wait for export; further ones are dropped and counted.
    pub queue_max: usize,
    /// Maximum number of spans of one export.
    pub batch_max: usize,
    /// How long the first span of a batch waits for others.
    pub delay: Duration,
}

impl Default for Batches {
    fn default() -> Self {
        // A process that is killed loses the spans of its last delay; the SDKs' queue of 2,048 overflows within one
        // export at the rates of a busy farm.
        Self { queue_max: 16_384, batch_max: 1024, delay: Duration::from_secs(1) }
    }
}

impl Batches {
    fn from_lookup(lookup: &impl Fn(&str) -> Option<String>) -> Self {
        let default = Self::default();
        let number = |name: &str| lookup(name)?.parse::<u64>().ok();
        let size = |name: &str| number(name).and_then(|it| usize::try_from(it).ok()).filter(|it| *it > 0);
        Self {
            queue_max: size("OTEL_BSP_MAX_QUEUE_SIZE").unwrap_or(default.queue_max),
            batch_max: size("OTEL_BSP_MAX_EXPORT_BATCH_SIZE").unwrap_or(default.batch_max),
            delay: number("OTEL_BSP_SCHEDULE_DELAY").map_or(default.delay, Duration::from_millis),
        }
    }
}

impl Settings {
    /// Reads the settings from the environment of the process.
    pub fn from_env(service: &'static str, instance: &str, log: LogFormat) -> Self {
        Self::from_lookup(service, instance, log, |name| std::env::var(name).ok())
    }

    /// Reads the settings from the variables that `lookup` returns.
    pub fn from_lookup(
        service: &'static str,
        instance: &str,
        log: LogFormat,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Self {
        // The OpenTelemetry specification requires that empty variables count as unset.
        let lookup = |name: &str| lookup(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let mut warnings = Vec::new();
        Self {
            service,
            instance: instance.to_owned(),
            log,
            filter: lookup("FOREBAY_LOG").unwrap_or_else(|| "info".to_owned()),
            file: None,
            traces: Traces::from_lookup(&lookup, &mut warnings),
            warnings,
        }
    }
}

impl Traces {
    fn from_lookup(lookup: &impl Fn(&str) -> Option<String>, warnings: &mut Vec<String>) -> Option<Self> {
        let signal_or_all = |suffix: &str| {
            lookup(&format!("OTEL_EXPORTER_OTLP_TRACES_{suffix}"))
                .or_else(|| lookup(&format!("OTEL_EXPORTER_OTLP_{suffix}")))
        };
        let named = signal_or_all("PROTOCOL");
        let protocol = if named.as_deref() == Some("grpc") { Protocol::Grpc } else { Protocol::Http };
        let endpoint = lookup("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| {
            let base = lookup("OTEL_EXPORTER_OTLP_ENDPOINT")?;
            Some(match protocol {
                Protocol::Grpc => base,
                Protocol::Http => format!("{}/v1/traces", base.trim_end_matches('/')),
            })
        })?;
        if lookup("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true")) {
            return None;
        }
        match lookup("OTEL_TRACES_EXPORTER").as_deref() {
            None | Some("otlp") => {}
            Some("none") => return None,
            Some(other) => {
                warnings.push(format!("OTEL_TRACES_EXPORTER={other} is not supported: tracing is off"));
                return None;
            }
        }
        if let Some(protocol) = named.filter(|name| name != "http/protobuf" && name != "grpc") {
            warnings.push(format!("OTLP protocol {protocol} is not supported: using http/protobuf"));
        }
        let sampler = lookup("OTEL_TRACES_SAMPLER").unwrap_or_else(|| "parentbased_always_on".to_owned());
        if sampler == "always_off" {
            return None;
        }
        let argument = lookup("OTEL_TRACES_SAMPLER_ARG");
        let sampler = Sampler::parse(&sampler, argument.as_deref()).unwrap_or_else(|| {
            warnings.push(format!("OTEL_TRACES_SAMPLER={sampler} is not supported: sampling all traces"));
            Sampler::ParentBased(1.0)
        });
        let timeout = signal_or_all("TIMEOUT").and_then(|ms| ms.parse().ok());
        Some(Self {
            endpoint,
            protocol,
            batches: Batches::from_lookup(lookup),
            sampler,
            timeout: timeout.map_or(DEFAULT_TIMEOUT, Duration::from_millis),
            service_name: lookup("OTEL_SERVICE_NAME"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Batches, DEFAULT_TIMEOUT, Duration, LogFormat, Protocol, Sampler, Settings};

    fn read(variables: &[(&str, &str)]) -> Settings {
        Settings::from_lookup("worker", "w1", LogFormat::Text, |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    const BASE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");

    #[test]
    fn tracing_is_off_without_an_endpoint() {
        assert!(read(&[]).traces.is_none());
        assert!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]).traces.is_none());
        assert!(read(&[("OTEL_TRACES_EXPORTER", "otlp")]).traces.is_none());
        assert_eq!(read(&[]).filter, "info");
    }

    #[test]
    fn the_base_endpoint_gets_a_path_and_the_own_one_does_not() {
        let traces = read(&[BASE]).traces.unwrap();
        assert_eq!(traces.endpoint, "http://collector:4318/v1/traces");
        assert_eq!(traces.timeout, DEFAULT_TIMEOUT);
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other/in");
        assert_eq!(read(&[BASE, own]).traces.unwrap().endpoint, "http://other/in");
    }

    #[test]
    fn tracing_can_be_switched_off() {
        assert!(read(&[BASE, ("OTEL_SDK_DISABLED", "TRUE")]).traces.is_none());
        assert!(read(&[BASE, ("OTEL_SDK_DISABLED", "no")]).traces.is_some());
        let none = read(&[BASE, ("OTEL_TRACES_EXPORTER", "none")]);
        assert!(none.traces.is_none() && none.warnings.is_empty());
        let console = read(&[BASE, ("OTEL_TRACES_EXPORTER", "console")]);
        assert!(console.traces.is_none() && console.warnings.len() == 1);
    }

    #[test]
    fn details_are_read() {
        let settings = read(&[
            BASE,
            ("FOREBAY_LOG", "debug"),
            ("OTEL_SERVICE_NAME", "mine"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "7"),
        ]);
        assert_eq!((settings.filter.as_str(), settings.warnings.len()), ("debug", 1));
        let traces = settings.traces.unwrap();
        assert_eq!(traces.batches, Batches { queue_max: 7, ..Batches::default() });
        assert_eq!((traces.protocol, traces.sampler), (Protocol::Http, Sampler::ParentBased(1.0)));
        assert_eq!(traces.timeout, Duration::from_millis(1500));
        assert_eq!(traces.service_name.as_deref(), Some("mine"));
    }
    #[test]
    fn a_grpc_endpoint_gets_no_path() {
        let grpc = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc");
        let traces = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317"), grpc]).traces.unwrap();
        assert_eq!((traces.endpoint.as_str(), traces.protocol), ("http://collector:4317", Protocol::Grpc));
    }

    #[test]
    fn samplers_are_read() {
        let sampler = |name: &'static str| read(&[BASE, ("OTEL_TRACES_SAMPLER", name)]);
        assert!(sampler("always_off").traces.is_none());
        assert_eq!(sampler("always_on").traces.unwrap().sampler, Sampler::Ratio(1.0));
        let unknown = sampler("xray");
        assert_eq!((unknown.traces.unwrap().sampler, unknown.warnings.len()), (Sampler::ParentBased(1.0), 1));
    }
}
