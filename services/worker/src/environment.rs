//! The environment of a build's commands.

use std::{collections::BTreeMap, path::Path};

use model::{Build, BuildRecord, SendingBuild};
use trace::BuildTrace;

use crate::{bazel, folder::RunFolder, shared::Shared};

/// The variables of the commands of `record`: of the worker's environment they get only `PATH`.
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
    if let Some(invocation) = record.invocation_id() {
        set("FOREBAY_INVOCATION", invocation.to_string());
    }
    set("FOREBAY_WORKSPACE", folder.build.display().to_string());
    if let Some(url) = shared.gateways.for_tools() {
        set(bazel::GRPC, url);
    }
    // A prompt would wait forever: no person can answer it.
    set("GIT_TERMINAL_PROMPT", "0".to_owned());
    if let Some(trace) = BuildTrace::of(build).command(record.attempt) {
        set("TRACEPARENT", trace.to_string());
    }
    all.extend(build.env.clone());
    all.into_iter().collect()
}

/// Git variables that a request may set for the preparation: how to reach a server, and what to trace.
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
/// Prefixes of variables that could make a preparation run the workspace's programs or read its files.
const STEERING: [&str; 8] = ["PATH", "HOME", "TMPDIR", "ENV", "BASH_ENV", "IFS", "LD_", "XDG_"];

/// The variables of a preparation's programs, whose folder is `own`: those of the request, except the ones that could
/// give the workspace influence over the preparation.
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
    // A prompt would wait forever: no person can answer it.
    set("GIT_TERMINAL_PROMPT", "0".to_owned());
    set("FOREBAY_BUILD_ID", build.id.to_string());
    all.into_iter().collect()
}

fn path() -> String {
    std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned())
}
