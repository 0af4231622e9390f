//! Builds a request from the flags of `forebay submit`.

use std::{collections::BTreeMap, path::Path, time::Duration};

use command_line::failure::{Failure, USAGE};
use model::{
    BuildId, BuildLimits, BuildRequest, BuildRequirements, Context, Digest, DigestFunction, ServiceRequest,
    ToolCall, WorkspaceUse,
};

use crate::submit_args::SubmitArgs;

/// Converts the flags to a build request, without its job and the folder of `--dir`, which may have to be uploaded.
pub(crate) fn build_request(args: &SubmitArgs, id: BuildId) -> Result<BuildRequest, Failure> {
    Ok(BuildRequest {
        id: Some(id),
        group: Some(args.group.clone()),
        priority: args.priority,
        command: args.command.clone(),
        job: None,
        submitter: args.submitter.clone(),
        env: pairs("--env", &args.env)?,
        context: context(args)?,
        timeout_seconds: args.timeout.map(|span| whole_seconds(*span)),
        queue_timeout_seconds: args.queue_timeout.map(|span| whole_seconds(*span)),
        max_attempts: args.max_attempts,
        lease_ttl_seconds: args.lease_ttl.map(|span| whole_seconds(*span)),
        tool: tool(args),
        workspace: workspace(args),
        executor_types: args.executor_type.iter().cloned().collect(),
        requirements: BuildRequirements(pairs("--requirement", &args.requirement)?),
        secrets: args.secret.clone(),
        services: services(args)?,
        limits: limits(&args.limit)?,
        occupancy: args.esu.iter().cloned().collect(),
        outputs: args.output.clone(),
        require_outputs: args.require_outputs,
        labels: pairs("--label", &args.label)?,
    })
}

/// The services in the file of `--services`.
fn services(args: &SubmitArgs) -> Result<Vec<ServiceRequest>, Failure> {
    let Some(path) = &args.services else { return Ok(Vec::new()) };
    let what = format!("--services {}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| Failure::new(USAGE, &what, &error))?;
    let wrong = |why: String| Failure::usage(format!("{what}: {why}"));
    let services = ServiceRequest::list_from_text(&text).map_err(|error| wrong(error.to_string()))?;
    ServiceRequest::check_all(&services).map_err(|error| wrong(error.to_string()))?;
    Ok(services)
}

fn workspace(args: &SubmitArgs) -> Option<WorkspaceUse> {
    match (args.warm, args.fresh) {
        (true, _) => Some(WorkspaceUse::Warm),
        (false, true) => Some(WorkspaceUse::Fresh),
        (false, false) => None,
    }
}

fn limits(given: &[String]) -> Result<BuildLimits, Failure> {
    let mut limits = BuildLimits::default();
    for (name, value) in pairs("--limit", given)? {
        let number: u64 = value.parse().map_err(|_| {
            Failure::usage(format!("invalid --limit {name}={value}: expected a whole number, without a unit"))
        })?;
        let field = match name.as_str() {
            "memory_bytes" => &mut limits.memory_bytes,
            "processes" => &mut limits.processes,
            "cpu_millis" => &mut limits.cpu_millis,
            "disk_bytes" => &mut limits.disk_bytes,
            "output_bytes" => &mut limits.output_bytes,
            _ => {
                let known = "memory_bytes, processes, cpu_millis, disk_bytes or output_bytes";
                return Err(Failure::usage(format!("invalid --limit {name}={value}: expected {known}")));
            }
        };
        *field = Some(number);
    }
    Ok(limits)
}

/// The tool call: from the flags, completed from the command line. `None` if no flag describes it.
fn tool(args: &SubmitArgs) -> Option<ToolCall> {
    let lists = [&args.target, &args.flag, &args.tag, &args.rule];
    let said =
        args.branch.is_some() || args.tool_version.is_some() || lists.iter().any(|list| !list.is_empty());
    let read = ToolCall::of_command(&args.command);
    let or = |said: &[String], read: Vec<String>| if said.is_empty() { read } else { said.to_vec() };
    said.then(|| ToolCall {
        command: read.command,
        flags: or(&args.flag, read.flags),
        targets: or(&args.target, read.targets),
        branch: args.branch.clone().unwrap_or_default(),
        tool_version: args.tool_version.clone().unwrap_or_default(),
        tags: args.tag.iter().cloned().collect(),
        rules: args.rule.iter().cloned().collect(),
    })
}

fn pairs(flag: &str, given: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let split = |pair: &String| {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("invalid {flag} {pair:?}: expected NAME=VALUE")))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    given.iter().map(split).collect()
}

/// Rounds up to whole seconds, so that a short positive time does not become 0.
fn whole_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

fn context(args: &SubmitArgs) -> Result<Context, Failure> {
    if let Some(folder) = &args.worker_dir {
        let path = absolute("--worker-dir", folder)?;
        return Ok(Context::Directory { path, ignore_files: args.ignore_files });
    }
    if let (Some(url), Some(revision)) = (&args.git, &args.revision) {
        let patch = args.patch.as_deref().map(read_patch).transpose()?;
        return Ok(Context::Git { url: repository(url)?, revision: revision.clone(), patch });
    }
    match &args.archive {
        Some(location) => archive(location, args.archive_digest.clone()),
        None => Ok(Context::Empty),
    }
}

/// The URL of a repository; a path becomes absolute, as the worker has another current folder.
fn repository(url: &str) -> Result<String, Failure> {
    let path = Path::new(url);
    let is_path = path.is_relative() && (url.starts_with('.') || (path.is_dir() && !url.contains(':')));
    if is_path { absolute("--git", path) } else { Ok(url.to_owned()) }
}

fn archive(location: &str, digest: Option<Digest>) -> Result<Context, Failure> {
    if location.contains("://") {
        return Ok(Context::Archive { location: location.to_owned(), digest });
    }
    let location = absolute("--archive", Path::new(location))?;
    // An absolute path may exist on the worker's machine only.
    let digest = match digest {
        None if Path::new(&location).is_file() => Some(digest_of(Path::new(&location))?),
        other => other,
    };
    Ok(Context::Archive { location, digest })
}

/// Relative paths must exist on this machine; absolute ones may exist on the worker's machine only.
fn absolute(flag: &str, path: &Path) -> Result<String, Failure> {
    let what = || format!("{flag} {}", path.display());
    let absolute = match path.canonicalize() {
        Ok(found) => found,
        Err(_) if path.is_absolute() => path.to_owned(),
        Err(error) => return Err(Failure::new(command_line::failure::USAGE, what(), &error)),
    };
    let text = absolute.into_os_string().into_string();
    text.map_err(|_| Failure::usage(format!("{}: the path is not UTF-8", what())))
}

fn read_patch(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| {
        Failure::new(command_line::failure::USAGE, format!("--patch {}", path.display()), &error)
    })
}

fn digest_of(path: &Path) -> Result<Digest, Failure> {
    let blob = hashing::hash_file(path, DigestFunction::Sha256).map_err(|error| {
        Failure::new(command_line::failure::USAGE, format!("--archive {}", path.display()), &error)
    })?;
    Ok(Digest::from_sha256(blob.hash))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{BuildId, Context, Digest, Duration, SubmitArgs, build_request, whole_seconds};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        submit: SubmitArgs,
    }

    fn request(line: &[&str]) -> Result<model::BuildRequest, String> {
        let parsed = Line::try_parse_from([&["submit"], line].concat()).map_err(|error| error.to_string())?;
        build_request(&parsed.submit, BuildId::generate()).map_err(|failure| failure.line().to_owned())
    }

    #[test]
    fn flags_become_fields() {
        let line =
            ["--group", "ci", "--priority", "batch", "--env", "A=b=c", "--timeout", "1m 500ms", "--output"];
        let found = request(
            &[&line[..], &["out/*", "--label", "k=", "--submitter", "ann", "--", "make", "-j", "--json"]]
                .concat(),
        )
        .unwrap();
        assert_eq!(found.command, ["make", "-j", "--json"]);
        assert_eq!(found.env.get("A").unwrap(), "b=c");
        assert_eq!(found.submitter.as_deref(), Some("ann"));
        assert_eq!(found.labels.get("k").unwrap(), "");
        assert_eq!(found.timeout_seconds, Some(61));
        assert_eq!(found.outputs, ["out/*"]);
        assert_eq!(found.context, Context::Empty);
    }

    #[test]
    fn services_are_read_from_a_file_and_checked_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("services.yaml");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            request(&["--services", file.to_str().unwrap(), "true"]).map(|request| request.services)
        };
        let found = read("- name: db\n  command: [postgres]\n  ready: { tcp: 5432 }\n").unwrap();
        assert_eq!(found, read(&serde_json::to_string(&found).unwrap()).unwrap());
        assert_eq!(found.len(), 1);
        let refused = read("- name: db\n").unwrap_err();
        assert!(
            refused.ends_with("services.yaml: the service db has neither a command nor an image"),
            "{refused}"
        );
        assert!(read("- name: db\n  comand: [x]\n").unwrap_err().contains("comand"));
        assert!(request(&["--services", "/no/file", "true"]).unwrap_err().contains("--services /no/file"));
    }

    #[test]
    fn contexts() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().canonicalize().unwrap().join("a.tar");
        std::fs::write(&archive, b"x").unwrap();
        let location = archive.to_str().unwrap().to_owned();
        let digest = Some(Digest::of(b"x"));
        let found = request(&["--archive", &location, "true"]).unwrap().context;
        assert_eq!(found, Context::Archive { location, digest });
        let there = request(&["--worker-dir", "/nowhere/on/this/machine", "true"]).unwrap().context;
        assert_eq!(
            there,
            Context::Directory { path: "/nowhere/on/this/machine".into(), ignore_files: false }
        );
        let line = ["--worker-dir", "/", "--ignore-files", "true"];
        assert_eq!(
            request(&line).unwrap().context,
            Context::Directory { path: "/".into(), ignore_files: true }
        );
        assert!(request(&["--worker-dir", "nowhere", "true"]).unwrap_err().contains("--worker-dir nowhere"));
        let git = request(&["--git", "https://h/r", "--revision", "main", "true"]).unwrap().context;
        let (url, revision) = ("https://h/r".into(), "main".into());
        assert_eq!(git, Context::Git { url, revision, patch: None });
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        assert!(request(&[]).is_err());
        assert!(request(&["--job", "j.yaml"]).is_ok());
        assert!(request(&["--job", "j.yaml", "true"]).is_err());
        assert!(request(&["--job", "j.yaml", "--env", "A=b"]).is_err());
        assert!(request(&["--git", "u", "true"]).is_err());
        assert!(request(&["--revision", "r", "true"]).is_err());
        assert!(request(&["--dir", "/", "--archive", "/x", "true"]).is_err());
        assert!(request(&["--dir", "/", "--worker-dir", "/x", "true"]).is_err());
        assert!(request(&["--worker-dir", "/", "--git", "u", "--revision", "r", "true"]).is_err());
        assert!(request(&["--ignore-files", "true"]).is_err());
        assert!(request(&["--group", "a b", "true"]).is_err());
        assert!(request(&["--env", "A", "true"]).unwrap_err().contains("NAME=VALUE"));
    }

    #[test]
    fn no_time_is_lost() {
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_secs(60)), 60);
    }
}
