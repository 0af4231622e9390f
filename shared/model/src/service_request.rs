//! Services of a build, a task or an action: commands that run beside its command and serve it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ImageReference, TaskLimits};

/// Maximum number of services of one command.
const SERVICES_MAX: usize = 8;
/// Maximum characters of a service's name: that of a host in the Domain Name System.
const NAME_MAX: usize = 63;
/// Names that every command has for its machine.
const OWN_NAMES: [&str; 2] = ["localhost", "forebay"];
/// Default and maximum seconds until a service is ready, and until it has stopped.
const READY_SECONDS: (u32, u32) = (60, 3600);
const STOP_SECONDS: (u32, u32) = (5, 300);

/// Name of a service, by which its command and the other services reach it: 1 to 63 lower-case letters, digits and hyphens,
/// with a letter first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[schemars(transparent)]
pub struct ServiceName(#[schemars(regex(pattern = r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$"))] String);

impl ServiceName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is not the name of a service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid name of a service {text:?}: expected 1 to {NAME_MAX} lower-case letters, digits and hyphens, with a letter first"
)]
pub struct ParseServiceNameError {
    text: String,
}

impl FromStr for ServiceName {
    type Err = ParseServiceNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_name = text.len() <= NAME_MAX
            && text.starts_with(|first: char| first.is_ascii_lowercase())
            && !text.ends_with('-')
            && text.bytes().all(is_known);
        if is_name {
            return Ok(Self(text.to_owned()));
        }
        Err(ParseServiceNameError { text: text.chars().take(NAME_MAX).collect() })
    }
}

impl<'de> Deserialize<'de> for ServiceName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A service, as the author of a build, task or action writes it: a command that runs beside the own command, in a network that
/// only they and the other services share. It starts in a copy of the same input files, and ends with the command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceRequest {
    /// Name of the service, unique among those of its command, and a name of its host.
    pub name: ServiceName,
    /// Further names of its host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<ServiceName>,
    /// Image whose files it sees. Default: those that its command sees without an image, the files of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageReference>,
    /// Name of an environment of the farm, instead of an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// Program and arguments. Default: those of its image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Environment variables; those of its image are added.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Names of services that must be ready before it starts. They must be listed before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<ServiceName>,
    /// When it counts as ready; the command starts when all services are. Default: as soon as it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyCheck>,
    /// Maximum seconds from its start until it is ready, 1 to 3600. Default: 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_seconds: Option<u32>,
    /// Seconds between the request to end and the kill of its processes, 0 to 300. Default: 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_seconds: Option<u32>,
    /// Limits of the service; absent limits come from the farm's settings.
    #[serde(default, skip_serializing_if = "TaskLimits::is_empty")]
    pub limits: TaskLimits,
}

/// Check whether a service is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "ReadyFields", into = "ReadyFields")]
#[schemars(with = "ReadyFields")]
pub enum ReadyCheck {
    /// It accepts connections on this TCP port.
    Tcp(u16),
    /// It answers a request with a status from 200 to 399.
    Http(HttpCheck),
    /// This program with its arguments exits with code 0 in the sandbox of the service.
    Command(Vec<String>),
}

/// Check whether a service is ready, as authors write it: exactly one of `tcp`, `http` and `command`.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "ReadyCheck")]
struct ReadyFields {
    /// TCP port on which it accepts connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp: Option<u16>,
    /// Request that it answers with a status from 200 to 399.
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<HttpCheck>,
    /// Program with its arguments that exits with code 0 in the sandbox of the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
}

impl TryFrom<ReadyFields> for ReadyCheck {
    type Error = &'static str;

    fn try_from(fields: ReadyFields) -> Result<Self, Self::Error> {
        match fields {
            ReadyFields { tcp: Some(port), http: None, command: None } => Ok(Self::Tcp(port)),
            ReadyFields { tcp: None, http: Some(check), command: None } => Ok(Self::Http(check)),
            ReadyFields { tcp: None, http: None, command: Some(argv) } => Ok(Self::Command(argv)),
            _ => Err("expected exactly one of tcp, http and command"),
        }
    }
}

impl From<ReadyCheck> for ReadyFields {
    fn from(check: ReadyCheck) -> Self {
        let none = Self::default();
        match check {
            ReadyCheck::Tcp(port) => Self { tcp: Some(port), ..none },
            ReadyCheck::Http(check) => Self { http: Some(check), ..none },
            ReadyCheck::Command(argv) => Self { command: Some(argv), ..none },
        }
    }
}

/// Request to a service that is asked whether it is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpCheck {
    /// Port of the service.
    pub port: u16,
    /// Path of the request, starting with a slash. Default: `/`.
    #[serde(default = "root", skip_serializing_if = "is_root")]
    pub path: String,
}

fn root() -> String {
    "/".to_owned()
}

fn is_root(path: &str) -> bool {
    path == "/"
}

/// An error in the services of a command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidService {
    #[error("there are {0} services, at most {SERVICES_MAX} can run beside a command")]
    TooMany(usize),
    #[error("the name {0} is used twice")]
    SameName(ServiceName),
    #[error("the name {0} is that of the machine itself")]
    OwnName(ServiceName),
    #[error("the service {0} has neither a command nor an image")]
    NoCommand(ServiceName),
    #[error("the service {0} has both an image and an environment: remove one of them")]
    TwoImages(ServiceName),
    #[error("the service {name} starts after {after}, which is not listed before it")]
    UnknownAfter { name: ServiceName, after: ServiceName },
    /// A value that no service can have.
    #[error("the {field} of the service {name} is invalid: expected {expected}")]
    Field { name: ServiceName, field: &'static str, expected: &'static str },
}

impl ServiceRequest {
    /// Checks the services of one command together.
    pub fn check_all(all: &[Self]) -> Result<(), InvalidService> {
        if all.len() > SERVICES_MAX {
            return Err(InvalidService::TooMany(all.len()));
        }
        let mut names = BTreeSet::new();
        for service in all {
            let earlier: BTreeSet<&ServiceName> =
                all.iter().take_while(|other| other.name != service.name).map(|other| &other.name).collect();
            for name in [&service.name].into_iter().chain(&service.aliases) {
                if OWN_NAMES.contains(&name.as_str()) {
                    return Err(InvalidService::OwnName(name.clone()));
                }
                if !names.insert(name) {
                    return Err(InvalidService::SameName(name.clone()));
                }
            }
            if let Some(after) = service.after.iter().find(|after| !earlier.contains(after)) {
                let (name, after) = (service.name.clone(), after.clone());
                return Err(InvalidService::UnknownAfter { name, after });
            }
            service.check()?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), InvalidService> {
        let has_image = self.image.is_some() || self.environment.is_some();
        if self.image.is_some() && self.environment.is_some() {
            return Err(InvalidService::TwoImages(self.name.clone()));
        }
        if self.command.is_empty() && !has_image {
            return Err(InvalidService::NoCommand(self.name.clone()));
        }
        let wrong = |field, expected| Err(InvalidService::Field { name: self.name.clone(), field, expected });
        if !is_command(&self.command) && !self.command.is_empty() {
            return wrong("command", COMMAND);
        }
        let is_variable = |(name, value): (&String, &String)| {
            !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
        };
        if !self.env.iter().all(is_variable) {
            return wrong("env", "variables with a name without '=', and without NUL bytes");
        }
        if self.ready_seconds.is_some_and(|seconds| !(1..=READY_SECONDS.1).contains(&seconds)) {
            return wrong("ready_seconds", "1 to 3600");
        }
        if self.stop_seconds.is_some_and(|seconds| seconds > STOP_SECONDS.1) {
            return wrong("stop_seconds", "0 to 300");
        }
        if self.limits.has_zero() {
            return wrong("limits", "numbers of at least 1");
        }
        match &self.ready {
            Some(ReadyCheck::Tcp(0) | ReadyCheck::Http(HttpCheck { port: 0, .. })) => {
                wrong("ready", "a port from 1 to 65535")
            }
            Some(ReadyCheck::Http(HttpCheck { path, .. })) if !is_path(path) => {
                wrong("ready", "a path that starts with a slash, without spaces and control characters")
            }
            Some(ReadyCheck::Command(argv)) if !is_command(argv) => wrong("ready", COMMAND),
            Some(ReadyCheck::Tcp(_) | ReadyCheck::Http(_) | ReadyCheck::Command(_)) | None => Ok(()),
        }
    }

    /// The names of its host.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        [&self.name].into_iter().chain(&self.aliases).map(ServiceName::as_str)
    }

    /// Maximum time from its start until it is ready.
    pub fn ready_within(&self) -> std::time::Duration {
        std::time::Duration::from_secs(self.ready_seconds.unwrap_or(READY_SECONDS.0).into())
    }

    /// Time between the request to end and the kill of its processes.
    pub fn stop_grace(&self) -> std::time::Duration {
        std::time::Duration::from_secs(self.stop_seconds.unwrap_or(STOP_SECONDS.0).into())
    }
}

const COMMAND: &str = "a program that is not empty, and arguments without NUL bytes";

/// Whether it is a program with its arguments.
pub(crate) fn is_command(argv: &[String]) -> bool {
    argv.first().is_some_and(|program| !program.trim().is_empty())
        && !argv.iter().any(|argument| argument.contains('\0'))
}

fn is_path(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn services(json: &str) -> Result<Vec<ServiceRequest>, String> {
        let all: Vec<ServiceRequest> = serde_json::from_str(json).map_err(|error| error.to_string())?;
        ServiceRequest::check_all(&all).map_err(|error| error.to_string())?;
        Ok(all)
    }

    #[test]
    fn what_authors_write_is_read_and_written_again() {
        let json = r#"[{"name":"db","aliases":["database"],"command":["postgres"],"ready":{"tcp":5432}},
            {"name":"app","image":"docker://a.b/app:1","after":["db"],"ready":{"http":{"port":80}},"limits":{"processes":9}},
            {"name":"queue","environment":"rabbit","ready":{"command":["check"]},"ready_seconds":9,"stop_seconds":0}]"#;
        let all = services(json).unwrap();
        assert_eq!(all[0].hosts().collect::<Vec<_>>(), ["db", "database"]);
        assert_eq!((all[2].ready_within().as_secs(), all[2].stop_grace().as_secs()), (9, 0));
        assert_eq!(services(&serde_json::to_string(&all).unwrap()), Ok(all));
    }

    #[test]
    fn what_cannot_run_is_refused_with_its_reason() {
        let many = [r#"{"name":"NAME","command":["x"]}"#; 9].join(",");
        let many = (0..9).fold(format!("[{many}]"), |text, n| text.replacen("NAME", &format!("n{n}"), 1));
        for (json, reason) in [
            (many.as_str(), "at most 8"),
            (
                r#"[{"name":"a","command":["x"]},{"name":"b","aliases":["a"],"command":["x"]}]"#,
                "a is used twice",
            ),
            (r#"[{"name":"a","aliases":["localhost"],"command":["x"]}]"#, "machine itself"),
            (r#"[{"name":"a"}]"#, "neither a command nor an image"),
            (r#"[{"name":"a","image":"docker://a.b/c","environment":"d"}]"#, "both"),
            (r#"[{"name":"a","command":["x"],"after":["a"]}]"#, "not listed before"),
            (r#"[{"name":"A","command":["x"]}]"#, "lower-case"),
            (r#"[{"name":"a-","command":["x"]}]"#, "lower-case"),
            (r#"[{"name":"a","command":[" "]}]"#, "program"),
            (r#"[{"name":"a","command":["x"],"ready":{"tcp":0}}]"#, "port"),
            (r#"[{"name":"a","command":["x"],"ready":{"tcp":70000}}]"#, "u16"),
            (r#"[{"name":"a","command":["x"],"ready":{}}]"#, "exactly one"),
            (r#"[{"name":"a","command":["x"],"ready":{"tcp":1,"command":["y"]}}]"#, "exactly one"),
            (r#"[{"name":"a","command":["x"],"ready":{"http":{"port":1,"path":"x y"}}}]"#, "slash"),
            (r#"[{"name":"a","command":["x"],"ready":{"command":[]}}]"#, "program"),
            (r#"[{"name":"a","command":["x"],"env":{"A=B":""}}]"#, "env"),
            (r#"[{"name":"a","command":["x"],"ready_seconds":0}]"#, "1 to 3600"),
            (r#"[{"name":"a","command":["x"],"limits":{"files":0}}]"#, "at least 1"),
            (r#"[{"name":"a","command":["x"],"port":1}]"#, "unknown field"),
        ] {
            let error = services(json).unwrap_err();
            assert!(error.contains(reason), "{json}: {error}");
        }
    }
}
