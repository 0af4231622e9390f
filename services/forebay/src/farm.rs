//! The farm of a command.

use clap::Args;
use client::{Client, ClientError};
use command_line::{
    failure::{Failure, say},
    globals::Globals,
    wait::{Wait, WaitLimit},
};
use model::{AuditKind, BuildId, BuildKey, Group, ListRequest, Millis};
use settings::Settings;

use crate::{
    last_build::{LAST, LastBuild},
    style::one_line,
    user::user_at_host,
};

/// A connection to a farm.
#[derive(Debug)]
pub(crate) struct Farm {
    client: Client,
    wait: WaitLimit,
    last: LastBuild,
}

/// Arguments that identify a build.
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// Build id or its first characters, GROUP/ID, id of an invocation, or @last for the build that you submitted last from this machine
    #[arg(value_name = "ID")]
    id: String,
    /// Group of the build [default: the group that has this id]
    #[arg(long)]
    group: Option<Group>,
}

/// Minimum length of an id prefix.
const PREFIX_MIN: usize = 4;
/// Length of an id with its dashes.
const ID_LENGTH: usize = 36;
/// Maximum number of builds that are listed if a prefix is ambiguous.
const CANDIDATES: usize = 10;

impl Farm {
    /// Connects within the wait limit.
    pub(crate) async fn connect(globals: &Globals, settings: &Settings) -> Result<Self, Failure> {
        let client = command_line::connect(globals, settings).await?;
        Ok(Self { client, wait: globals.wait()?, last: LastBuild::of(&globals.farm_name(settings)?) })
    }

    /// The client, for calls without retries.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The current time by the clock of the farm.
    pub(crate) fn now(&self) -> Millis {
        self.client.bus().now()
    }

    /// The file that remembers the build that this user submitted last to this farm.
    pub(crate) fn last(&self) -> &LastBuild {
        &self.last
    }

    /// Makes a call and retries it while the service is unreachable, within the wait limit. Every call is idempotent.
    pub(crate) async fn call<T>(
        &self,
        call: impl AsyncFn(&Client) -> Result<T, ClientError>,
    ) -> Result<T, Failure> {
        let mut wait = Wait::new(self.wait);
        loop {
            match wait.answer(call(&self.client)).await? {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_unreachable() => wait.more(error.into()).await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Records for operators what this command did on the bus without a service between. A failure to do so is reported.
    pub(crate) async fn record(&self, kind: AuditKind, command: &str, target: &str, change: Option<&str>) {
        let (bus, user) = (self.client.bus(), user_at_host());
        if let Err(error) = audit::write_stated(bus, kind, (&user, command), target, change).await {
            let error = telemetry::error_chain(&error);
            say(&format!("this is done, but could not be recorded for `forebay audit`: {error}"));
        }
    }

    /// The full key of the requested build.
    pub(crate) async fn resolve(&self, args: &BuildArgs) -> Result<BuildKey, Failure> {
        let invalid = |error: model::ParseIdError| Failure::usage(error.to_string());
        if args.id == LAST {
            return of_group(self.last.read()?, args.group.as_ref());
        }
        let (group, id) = match args.id.split_once('/') {
            Some((group, id)) => (Some(group.parse().map_err(invalid)?), id),
            None => (args.group.clone(), args.id.as_str()),
        };
        let key = match id.parse::<BuildId>() {
            Ok(id) => match group {
                Some(group) => BuildKey { group, id },
                None => self.call(async |client| client.find(id).await).await?,
            },
            // As long as an id, and none: the id of all zeros, for example.
            Err(error) if id.len() >= ID_LENGTH => return Err(invalid(error)),
            Err(_) if is_prefix(id) => self.find_by_prefix(group, id).await?,
            Err(_) => {
                let id = one_line(id, 80);
                let wanted = format!("a UUID, {PREFIX_MIN} or more of its first characters, or {LAST}");
                return Err(Failure::usage(format!("invalid build id \"{id}\": expected {wanted}")));
            }
        };
        of_group(key, args.group.as_ref())
    }

    /// The only build with this id prefix among the recent builds of the group, or of all groups.
    async fn find_by_prefix(&self, group: Option<Group>, prefix: &str) -> Result<BuildKey, Failure> {
        let request = ListRequest {
            id_prefix: Some(prefix.to_owned()),
            limit: Some(CANDIDATES),
            ..ListRequest::default()
        };
        let found = self.call(async |client| client.builds(group.as_ref(), &request).await).await?.builds;
        match found.as_slice() {
            [] => Err(Failure::usage(format!(
                "no id of the last 1,000 builds of each group begins with {prefix:?}: give the whole id"
            ))),
            [one] => Ok(one.record.build.key()),
            several => {
                let named = several.iter().take(CANDIDATES).map(|view| view.record.build.key().to_string());
                let named: Vec<String> = named.collect();
                let named = named.join(", ");
                Err(Failure::usage(format!(
                    "several build ids begin with {prefix:?}: {named}; give more characters"
                )))
            }
        }
    }
}

fn of_group(key: BuildKey, group: Option<&Group>) -> Result<BuildKey, Failure> {
    match group {
        Some(group) if *group != key.group => {
            Err(Failure::usage(format!("build {key} is not in group {group}")))
        }
        Some(_) | None => Ok(key),
    }
}

fn is_prefix(text: &str) -> bool {
    let digits = text.chars().filter(char::is_ascii_hexdigit).count();
    digits >= PREFIX_MIN && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}

#[cfg(test)]
mod tests {
    use super::is_prefix;

    #[test]
    fn prefixes_are_hexadecimal() {
        assert!(is_prefix("01a2") && is_prefix("01A202E7-12"));
        assert!(!is_prefix("01a") && !is_prefix("----") && !is_prefix("last") && !is_prefix(""));
    }
}
