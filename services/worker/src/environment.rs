//! The environment of a build's commands.

use std::collections::BTreeMap;

use model::{BuildRecord, SendingBuild};

use crate::{Shared, bazel, folder::RunFolder};

/// What a command of `record` sees: nothing of the worker's own environment but `PATH`.
pub(crate) fn variables(shared: &Shared, record: &BuildRecord, folder: &RunFolder) -> Vec<(String, String)> {
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned());
    let path = format!("{}:{path}", shared.folder.programs().display());
    let build = &record.build;
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    let mut set = |name: &str, value: String| all.insert(name.to_owned(), value);
    set("PATH", path);
    set("HOME", folder.build.display().to_string());
    set("TMPDIR", folder.temporary.display().to_string());
    set("LANG", "C.UTF-8".to_owned());
    set("FOREBAY_BUILD_ID", build.id.to_string());
    let sender = SendingBuild { worker: shared.id.clone(), id: build.id, attempt: record.attempt };
    set("FOREBAY_BUILD", sender.to_string());
    set("FOREBAY_GROUP", build.group.to_string());
    set("FOREBAY_PRIORITY", build.priority.to_string());
    set("FOREBAY_ATTEMPT", record.attempt.to_string());
    set("FOREBAY_WORKSPACE", folder.build.display().to_string());
    if let Some(url) = shared.grpc.get() {
        set(bazel::GRPC, url.clone());
    }
    // Nobody is there to answer a prompt.
    set("GIT_TERMINAL_PROMPT", "0".to_owned());
    if let Some(trace) = telemetry::current().map(|context| context.traceparent).or(build.traceparent.clone())
    {
        set("TRACEPARENT", trace);
    }
    all.extend(build.env.clone());
    all.into_iter().collect()
}
