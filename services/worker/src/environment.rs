//! The environment of a build's commands.

use std::{collections::BTreeMap, path::Path};

use model::{Build, BuildRecord, SendingBuild};

use crate::{Shared, bazel, folder::RunFolder};

/// What a command of `record` sees: nothing of the worker's own environment but `PATH`.
pub(crate) fn variables(shared: &Shared, record: &BuildRecord, folder: &RunFolder) -> Vec<(String, String)> {
    let path = format!("{}:{}", shared.folder.programs().display(), path());
    let build = &record.build;
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    let mut set = |name: &str, value: String| all.insert(name.to_owned(), value);
    set("PATH", path);
    set("HOME", folder.home.display().to_string());
    set("TMPDIR", folder.temporary.display().to_string());
    set("LANG", "C.UTF-8".to_owned());
    set("FOREBAY_BUILD_ID", build.id.to_string());
    let sender = SendingBuild { worker: shared.id.clone(), id: build.id, attempt: record.attempt };
    set("FOREBAY_BUILD", sender.to_string());
    set("FOREBAY_GROUP", build.group.to_string());
    set("FOREBAY_PRIORITY", build.priority.to_string());
    set("FOREBAY_ATTEMPT", record.attempt.to_string());
    set("FOREBAY_WORKSPACE", folder.build.display().to_string());
    if let Some(url) = shared.gateways.for_tools() {
        set(bazel::GRPC, url);
    }
    // No person can answer a prompt.
    set("GIT_TERMINAL_PROMPT", "0".to_owned());
    if let Some(trace) = telemetry::current().map(|context| context.traceparent).or(build.traceparent.clone())
    {
        set("TRACEPARENT", trace);
    }
    all.extend(build.env.clone());
    all.into_iter().collect()
}

/// What of the variables of git a request may set for the preparation: how to reach a server, and what to trace.
const GIT: [&str; 9] = [
    "GIT_SSH",
    "GIT_ASKPASS",
    "GIT_SSL_",
    "GIT_HTTP_",
    "GIT_CURL_",
    "GIT_TRACE",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_KEY_",
    "GIT_CONFIG_VALUE_",
];
/// What may have programs of the workspace run instead of the system's, or its files read.
const STEERING: [&str; 8] = ["PATH", "HOME", "TMPDIR", "ENV", "BASH_ENV", "IFS", "LD_", "XDG_"];

/// What the programs of a preparation see, whose own folder is `own`: what the request says, but for what could have the
/// workspace steer them.
pub(crate) fn of_preparation(build: &Build, own: &Path) -> Vec<(String, String)> {
    let steers = |name: &String| {
        let starts = |list: &[&str]| list.iter().any(|start| name.starts_with(start));
        starts(&STEERING) || (name.starts_with("GIT_") && !starts(&GIT))
    };
    let mut all: BTreeMap<String, String> = build.env.clone();
    all.retain(|name, _| !steers(name));
    let mut set = |name: &str, value: String| all.insert(name.to_owned(), value);
    set("PATH", path());
    set("HOME", own.join("home").display().to_string());
    set("TMPDIR", own.display().to_string());
    set("LANG", "C.UTF-8".to_owned());
    // No person can answer a prompt.
    set("GIT_TERMINAL_PROMPT", "0".to_owned());
    set("FOREBAY_BUILD_ID", build.id.to_string());
    all.into_iter().collect()
}

fn path() -> String {
    std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned())
}
