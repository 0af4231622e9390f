//! `forebay credential-helper`: gives Bazel the credentials of this machine for calls of a gateway.

use std::{collections::BTreeMap, io::Read as _, process::ExitCode, time::SystemTime};

use callers::token_expiry;
use clap::{Args, ValueEnum};
use command_line::{
    failure::{Failure, USAGE},
    stdout,
};
use model::is_loopback_host;
use serde::{Deserialize, Serialize};
use settings::Settings;
use url::Url;

const EXAMPLES: &str = "\
Bazel 7 and later call a program, to which they give no arguments but `get`. So write a script, for example
tools/forebay-credentials:
  #!/bin/sh
  exec forebay credential-helper --host farm.example.com \"$@\"
and name it in .bazelrc:
  build --credential_helper=farm.example.com=%workspace%/tools/forebay-credentials

The credential is the content of the file that the setting `gateway_token_file` names.";

/// Maximum bytes of a request.
const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// Options of `forebay credential-helper`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CredentialHelperArgs {
    /// Host that may receive the credential; for other hosts the answer is empty
    #[arg(long = "host", value_name = "HOST", required = true)]
    hosts: Vec<String>,
    /// What Bazel asks for
    verb: Verb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Verb {
    /// The headers of a request; its URI is on standard input, as JSON
    Get,
}

/// The request, by the specification of credential helpers.
#[derive(Debug, Deserialize)]
struct Asked {
    uri: String,
}

#[derive(Debug, Default, Serialize)]
struct Answer {
    headers: BTreeMap<&'static str, [String; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
}

/// Answers one request of Bazel.
pub(crate) fn run(args: &CredentialHelperArgs, settings: &Settings) -> Result<ExitCode, Failure> {
    let Verb::Get = args.verb;
    let mut text = String::new();
    let read = std::io::stdin().take(REQUEST_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| Failure::new(USAGE, "cannot read the request on standard input", &error))?;
    let asked: Asked = serde_json::from_str(&text).map_err(|error| {
        Failure::new(USAGE, "invalid request on standard input: expected {\"uri\": \"https://...\"}", &error)
    })?;
    if !is_listed(&args.hosts, &asked.uri)? {
        stdout::json(&Answer::default())?;
        return Ok(ExitCode::SUCCESS);
    }
    let path = settings.gateway_token_file.as_ref().ok_or_else(|| {
        Failure::usage(
            "no credential: set gateway_token_file, for example by FOREBAY_GATEWAY_TOKEN_FILE".to_owned(),
        )
    })?;
    let token = std::fs::read_to_string(path).map_err(|error| {
        Failure::new(USAGE, format!("cannot read the credential {}", path.display()), &error)
    })?;
    let token = token.trim();
    let expires = token_expiry(token).map(|seconds| {
        let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        humantime::format_rfc3339_seconds(at).to_string()
    });
    let headers = [("Authorization", [format!("Bearer {token}")])].into();
    stdout::json(&Answer { headers, expires })?;
    Ok(ExitCode::SUCCESS)
}

fn is_listed(hosts: &[String], uri: &str) -> Result<bool, Failure> {
    let parsed = Url::parse(uri).map_err(|error| Failure::usage(format!("invalid URI {uri:?}: {error}")))?;
    let is_secure = matches!(parsed.scheme(), "https" | "grpcs");
    let host = parsed.host_str().unwrap_or_default();
    let is_local = is_loopback_host(host);
    // A credential is not sent in the clear.
    Ok((is_secure || is_local) && hosts.iter().any(|listed| listed.eq_ignore_ascii_case(host)))
}

#[cfg(test)]
mod tests {
    use super::is_listed;

    #[test]
    fn only_listed_hosts_receive_the_credential() {
        let hosts = ["farm.example.com".to_owned(), "127.0.0.1".to_owned()];
        let listed = |uri| is_listed(&hosts, uri).ok();
        for uri in [
            "https://farm.example.com/build.bazel.remote.execution.v2.Execution",
            "https://FARM.example.com:8980/x",
            "grpcs://farm.example.com",
            "http://127.0.0.1:8980/x",
        ] {
            assert_eq!(listed(uri), Some(true), "{uri}");
        }
        for uri in [
            "https://github.com/x",
            "http://farm.example.com/x",
            "https://farm.example.com.evil.com/x",
            "https://farm.example.com@evil.com/x",
            "file:///etc/passwd",
        ] {
            assert_eq!(listed(uri), Some(false), "{uri}");
        }
        assert_eq!(listed("farm.example.com"), None);
    }
}
