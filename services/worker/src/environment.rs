//! The environment of a build's commands.

use std::{collections::BTreeMap, path::Path};

use model::{Build, SendingBuild};
use trace::BuildTrace;

use crate::{bazel, build_run::Run, build_secrets::BuildSecrets, search_path::search_path};

/// The search path in an image that has none.
const OF_IMAGES: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The variables of the commands of a run: those of its image, then those of the farm, then its own. Of the worker's environment
/// they get only `PATH`, and not in an image.
pub(crate) fn variables(run: &Run<'_>) -> Vec<(String, String)> {
    let (shared, record, folder) = (run.shared, run.record, &run.workspace.folder);
    let build = &record.build;
    let mut all: BTreeMap<String, String> =
        run.image.iter().flat_map(|image| image.config.env.iter().cloned()).collect();
    let own = if run.image.is_some() { OF_IMAGES.to_owned() } else { search_path() };
    let path = all.remove("PATH").unwrap_or(own);
    let path = format!("{}:{path}", shared.folder.programs().display());
    let mut set = |name: &str, value: String| all.insert(name.to_owned(), value);
    set("PATH", path);
    set("HOME", folder.home.display().to_string());
    set("TMPDIR", folder.temporary.display().to_string());
    set("LANG", "C.UTF-8".to_owned());
    let of_image = run.image.as_ref().and_then(|image| image.user.as_ref()?.name.clone());
    // The user of the build has no name on the machine.
    let of_farm = || run.users().own.filter(|_| run.sandbox().is_some()).map(|_| "build".to_owned());
    if let Some(user) = of_image.or_else(of_farm) {
        set("USER", user.clone());
        set("LOGNAME", user);
    }
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
        if let Some(token) = run.secrets.as_ref().and_then(BuildSecrets::token) {
            set(bazel::TOKEN, token.to_owned());
        }
        if shared.settings.gateway_authorities.is_some() {
            let copy = shared.folder.programs().join(bazel::AUTHORITIES_COPY);
            set(bazel::AUTHORITIES, copy.display().to_string());
        }
    }
    // A prompt would wait forever: no person can answer it.
    set("GIT_TERMINAL_PROMPT", "0".to_owned());
    if let Some(trace) = BuildTrace::of(build).command(record.attempt) {
        set("TRACEPARENT", trace.to_string());
    }
    all.extend(build.env.clone());
    if let Some(secrets) = &run.secrets {
        all.extend(secrets.variables(&build.secrets, &folder.secrets()));
    }
    all.into_iter().collect()
}

/// Variables that a request may set for the preparation. They choose no program, file, server or proxy: the preparation
/// runs outside of the sandbox of builds.
const OF_PREPARATION: [&str; 5] = [
    "GIT_CURL_VERBOSE",
    "GIT_HTTP_LOW_SPEED_LIMIT",
    "GIT_HTTP_LOW_SPEED_TIME",
    "GIT_HTTP_USER_AGENT",
    "GIT_SSL_NO_VERIFY",
];
/// Beginning of the names of variables that turn on traces of git. Other values than these could name a file to write.
const TRACE: &str = "GIT_TRACE";
const TRACE_VALUES: [&str; 6] = ["0", "1", "2", "true", "false", ""];

/// The variables of a preparation's programs, whose folder is `own`: those of the request that cannot give the build
/// influence over the worker.
pub(crate) fn of_preparation(build: &Build, own: &Path) -> Vec<(String, String)> {
    let is_harmless = |name: &str, value: &str| {
        OF_PREPARATION.contains(&name) || (name.starts_with(TRACE) && TRACE_VALUES.contains(&value))
    };
    let mut all: BTreeMap<String, String> = build.env.clone();
    all.retain(|name, value| is_harmless(name, value));
    let mut count: usize = 0;
    for (key, value) in headers(&build.env) {
        all.insert(format!("GIT_CONFIG_KEY_{count}"), key.to_owned());
        all.insert(format!("GIT_CONFIG_VALUE_{count}"), value.to_owned());
        count += 1;
    }
    let mut set = |name: &str, value: String| all.insert(name.to_owned(), value);
    set("GIT_CONFIG_COUNT", count.to_string());
    set("PATH", search_path());
    set("HOME", own.join("home").display().to_string());
    set("TMPDIR", own.display().to_string());
    set("LANG", "C.UTF-8".to_owned());
    // A prompt would wait forever: no person can answer it.
    set("GIT_TERMINAL_PROMPT", "0".to_owned());
    set("FOREBAY_BUILD_ID", build.id.to_string());
    all.into_iter().collect()
}

/// The headers of HTTP requests, such as credentials, that a request gives to git by `GIT_CONFIG_COUNT`. Any other
/// setting of git could run programs.
fn headers(env: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    let count = env.get("GIT_CONFIG_COUNT").and_then(|count| count.parse::<usize>().ok()).unwrap_or(0);
    let entry = |number: usize| {
        let key = env.get(&format!("GIT_CONFIG_KEY_{number}"))?;
        let value = env.get(&format!("GIT_CONFIG_VALUE_{number}"))?;
        let lower = key.to_ascii_lowercase();
        (lower.starts_with("http.") && lower.ends_with(".extraheader")).then_some((&**key, &**value))
    };
    (0..count.min(HEADERS_MAX)).filter_map(entry)
}

/// Maximum number of settings of git in a request.
const HEADERS_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use model::BuildRequest;

    use super::*;
    use crate::testing;

    fn build(request: BuildRequest) -> Build {
        testing::build("g", request)
    }

    #[test]
    fn c1_a_request_cannot_steer_how_its_sources_are_fetched() {
        let steering = [
            ("GIT_SSH_COMMAND", "id"),
            ("GIT_SSH", "/x"),
            ("GIT_ASKPASS", "/x"),
            ("GIT_PROXY_COMMAND", "/x"),
            ("GIT_TRACE", "/etc/cron.d/x"),
            ("GIT_TRACE2_EVENT", "af_unix:/x"),
            ("GIT_EXEC_PATH", "/x"),
            ("GIT_SSL_CERT", "/etc/shadow"),
            ("https_proxy", "http://127.0.0.1"),
            ("NO_PROXY", "*"),
            ("TAR_OPTIONS", "--to-command=id"),
            ("LD_PRELOAD", "/x"),
            ("GCONV_PATH", "/x"),
            ("SSH_ASKPASS", "/x"),
        ];
        let harmless = [("GIT_TRACE", "1"), ("GIT_HTTP_LOW_SPEED_TIME", "9"), ("GIT_SSL_NO_VERIFY", "1")];
        let configured = [
            ("GIT_CONFIG_COUNT", "3"),
            ("GIT_CONFIG_KEY_0", "core.fsmonitor"),
            ("GIT_CONFIG_VALUE_0", "id"),
            ("GIT_CONFIG_KEY_1", "http.https://h/.extraHeader"),
            ("GIT_CONFIG_VALUE_1", "Authorization: x"),
            ("GIT_CONFIG_KEY_2", "http.proxy"),
            ("GIT_CONFIG_VALUE_2", ""),
        ];
        let of = |env: &[(&str, &str)]| -> BTreeMap<String, String> {
            let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let request = BuildRequest { env, command: vec!["true".into()], ..BuildRequest::default() };
            let found = of_preparation(&build(request), "/own".as_ref()).into_iter();
            found.filter(|(name, _)| name != "FOREBAY_BUILD_ID").collect()
        };
        let plain = of(&[]);
        assert_eq!(of(&steering), plain);
        let (with, without) = (of(&harmless), plain.len());
        assert_eq!((with["GIT_TRACE"].as_str(), with.len()), ("1", without + 3));
        let configured = of(&configured);
        assert_eq!(configured["GIT_CONFIG_COUNT"], "1");
        assert_eq!(configured["GIT_CONFIG_KEY_0"], "http.https://h/.extraHeader");
        assert!(!configured.contains_key("GIT_CONFIG_KEY_1"));
    }
}
