//! Validation of a request: every error that can be found without running the build.

use std::collections::BTreeSet;

use invariant::Present as _;

use crate::{
    Attempt, BadGlob, Build, BuildId, BuildJob, BuildRequest, Context, Digest, DigestFunction, Esu,
    ExecutorType, Group, InvalidRequirements, InvalidSecrets, InvalidService, JobSource, Millis, Priority,
    RequestLimits, SecretRequest, ServiceRequest, ToolHints, WrongLimit, read_glob,
};

/// Maximum bytes of all globs for outputs of a build: each of them is compared with each path of its workspace.
const OUTPUTS_BYTES_MAX: usize = 16 << 10;

/// Why a request was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    #[error("the build has no id: give a UUID as field id, or GROUP/UUID as header Nats-Msg-Id")]
    NoId,
    #[error("field id is {body} but header Nats-Msg-Id is {header}")]
    IdMismatch { body: BuildId, header: BuildId },
    /// The subject grants the right to use a group, so that the body cannot name another.
    #[error("field group is {body} but the call is for group {subject}")]
    GroupMismatch { body: Group, subject: Group },
    #[error("field priority is {body} but the subject's priority is {subject}")]
    PriorityMismatch { body: Priority, subject: Priority },
    #[error("field command is empty: give the program and its arguments, or a job")]
    EmptyCommand,
    #[error("the build has both a command and a job: give only one")]
    CommandAndJob,
    #[error("field env applies to a command: set env in the tasks of the job or in its defaults")]
    EnvOfJob,
    #[error("field services applies to a command: set services in the tasks of the job")]
    ServicesOfJob,
    #[error(
        "field secrets applies to a command: the tasks of a job are actions, whose results others get from the cache, and \
         executors have no secrets"
    )]
    SecretsOfJob,
    #[error("field secrets: {0}")]
    Secrets(#[from] InvalidSecrets),
    #[error("field services: {0}")]
    Services(#[from] InvalidService),
    #[error("field submitter is {0:?}: expected 1 to {SUBMITTER_MAX} characters without control characters")]
    BadSubmitter(String),
    /// No process can be passed a NUL byte.
    #[error("field {field} contains a NUL byte")]
    Nul { field: &'static str },
    #[error("invalid environment variable name {name:?}: must not be empty or contain '='")]
    BadEnvName { name: String },
    #[error("output {pattern:?} leaves the workspace: expected a relative glob without '..'")]
    OutputLeaves { pattern: String },
    #[error("invalid glob in field outputs: {0}")]
    OutputGlob(BadGlob),
    #[error("the globs in field outputs have {bytes} bytes, the limit is {OUTPUTS_BYTES_MAX}")]
    ManyOutputs { bytes: usize },
    #[error("invalid context {field} {value:?}: {wanted}")]
    BadContext { field: &'static str, value: String, wanted: &'static str },
    #[error("unknown executor type {name}: this farm has {known}")]
    UnknownExecutorType { name: ExecutorType, known: String },
    #[error("field occupancy is {amount} ESU for {kind}: expected 0 to {OCCUPANCY_MAX}")]
    BadOccupancy { kind: ExecutorType, amount: Esu },
    #[error(transparent)]
    Requirements(#[from] InvalidRequirements),
    #[error("field {} is {}: expected {} to {} (setting build_limits)", .0.field, .0.value, .0.range.0, .0.range.1)]
    WrongLimit(WrongLimit),
    #[error("field {field} is {value}: expected 1 to {max}")]
    OutOfRange { field: &'static str, value: u64, max: u64 },
}

/// A valid build whose occupancy is still to be estimated unless the request gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The build, with the occupancy of the request.
    pub build: Build,
    /// Executor types that the request names.
    pub executor_types: BTreeSet<ExecutorType>,
    /// The job, still to be checked and stored; the build contains its digest.
    pub job: Option<JobSource>,
}

impl BuildRequest {
    /// Checks the request and fills in defaults.
    ///
    /// `header_id` is the `Nats-Msg-Id` of a plain publish. `subject_priority` is absent if the subject names no
    /// priority, as in the API.
    pub fn validate(
        self,
        group: &Group,
        subject_priority: Option<Priority>,
        header_id: Option<BuildId>,
        limits: &RequestLimits,
        now: Millis,
    ) -> Result<Accepted, InvalidRequest> {
        let id = self.checked_id(header_id)?;
        let priority = self.checked_place(group, subject_priority)?;
        self.check_work()?;
        self.submitter.as_deref().map_or(Ok(()), check_submitter)?;
        check_outputs(&self.outputs)?;
        check_context(&self.context)?;
        self.check_occupancy(limits)?;
        self.requirements.check()?;
        ServiceRequest::check_all(&self.services)?;
        SecretRequest::check_all(&self.secrets, &self.env)?;
        let limits_of_group = limits.build_limits_of(group);
        self.limits.wrong(&limits_of_group).map_or(Ok(()), |wrong| Err(InvalidRequest::WrongLimit(wrong)))?;
        let (times, most) = (limits.times_of(priority), limits.times_max);
        let timeout_seconds =
            ranged("timeout_seconds", self.timeout_seconds, times.timeout_seconds, most.timeout_seconds)?;
        let queue_timeout_seconds = ranged(
            "queue_timeout_seconds",
            self.queue_timeout_seconds,
            times.queue_timeout_seconds,
            most.queue_timeout_seconds,
        )?;
        let lease_ttl_seconds = ranged(
            "lease_ttl_seconds",
            self.lease_ttl_seconds,
            times.lease_ttl_seconds,
            most.lease_ttl_seconds,
        )?;
        let asked = self.max_attempts.map(u64::from);
        let attempts =
            ranged("max_attempts", asked, u64::from(limits.attempts), u64::from(limits.attempts_max))?;
        let mut build = Build {
            id,
            group: group.clone(),
            priority,
            command: self.command,
            job: self.job.as_ref().map(|job| BuildJob { digest: job.digest(), size_bytes: None, tasks: 0 }),
            env: self.env,
            context: self.context,
            timeout_seconds,
            queue_timeout_seconds,
            lease_ttl_seconds,
            max_attempts: Attempt(
                u32::try_from(attempts).present_or(u32::MAX, "attempts within their limit"),
            ),
            outputs: self.outputs,
            require_outputs: self.require_outputs,
            labels: self.labels,
            submitter: self.submitter,
            expected_ms: None,
            tool: self.tool,
            tool_hints: ToolHints::default(),
            workspace: self.workspace.unwrap_or_default(),
            requirements: self.requirements,
            secrets: self.secrets,
            services: self.services,
            limits: self.limits,
            occupancy: self.occupancy,
            estimated_by: None,
            sends_actions: false,
            submitted_at_ms: now,
            request_digest: Digest::of(b""),
            traceparent: None,
        };
        build.request_digest = build.content_digest(&self.executor_types);
        // The digest does not depend on settings.
        build.workspace = self.workspace.unwrap_or_else(|| limits.warm.of(group, &build.labels));
        build.limits = build.limits.or(limits_of_group);
        Ok(Accepted { build, executor_types: self.executor_types, job: self.job })
    }

    /// Checks that the request has exactly one of command and job.
    fn check_work(&self) -> Result<(), InvalidRequest> {
        match &self.job {
            None => {
                check_command(&self.command)?;
                check_env(self.env.iter())
            }
            Some(_) if !self.command.is_empty() => Err(InvalidRequest::CommandAndJob),
            Some(_) if !self.env.is_empty() => Err(InvalidRequest::EnvOfJob),
            Some(_) if !self.services.is_empty() => Err(InvalidRequest::ServicesOfJob),
            Some(_) if !self.secrets.is_empty() => Err(InvalidRequest::SecretsOfJob),
            Some(_) => Ok(()),
        }
    }

    fn check_occupancy(&self, limits: &RequestLimits) -> Result<(), InvalidRequest> {
        let mut named = self.executor_types.iter().chain(self.occupancy.0.keys());
        if let Some(unknown) = named.find(|kind| !limits.executor_types.contains(*kind)) {
            let known: Vec<&str> = limits.executor_types.iter().map(ExecutorType::as_str).collect();
            return Err(InvalidRequest::UnknownExecutorType {
                name: unknown.clone(),
                known: known.join(", "),
            });
        }
        let sound = |amount: Esu| (Esu::ZERO..=OCCUPANCY_MAX).contains(&amount);
        match self.occupancy.iter().find(|(_, amount)| !sound(*amount)) {
            Some((kind, amount)) => Err(InvalidRequest::BadOccupancy { kind: kind.clone(), amount }),
            None => Ok(()),
        }
    }

    fn checked_id(&self, header: Option<BuildId>) -> Result<BuildId, InvalidRequest> {
        match (self.id, header) {
            (Some(body), Some(header)) if body != header => Err(InvalidRequest::IdMismatch { body, header }),
            (Some(id), _) | (None, Some(id)) => Ok(id),
            (None, None) => Err(InvalidRequest::NoId),
        }
    }

    fn checked_place(&self, subject: &Group, priority: Option<Priority>) -> Result<Priority, InvalidRequest> {
        if let Some(body) = self.group.as_ref().filter(|body| *body != subject) {
            return Err(InvalidRequest::GroupMismatch { body: body.clone(), subject: subject.clone() });
        }
        match (self.priority, priority) {
            (Some(body), Some(subject)) if body != subject => {
                Err(InvalidRequest::PriorityMismatch { body, subject })
            }
            (_, Some(priority)) | (Some(priority), None) => Ok(priority),
            (None, None) => Ok(Priority::default()),
        }
    }
}

/// Maximum ESU of one type that a request may state for a build.
const OCCUPANCY_MAX: Esu = Esu::from_micros(100_000 * 1_000_000);
/// Maximum length in characters of a submitter's name.
const SUBMITTER_MAX: usize = 200;

fn check_command(command: &[String]) -> Result<(), InvalidRequest> {
    if command.first().is_none_or(|program| program.trim().is_empty()) {
        return Err(InvalidRequest::EmptyCommand);
    }
    if command.iter().any(|arg| arg.contains('\0')) {
        return Err(InvalidRequest::Nul { field: "command" });
    }
    Ok(())
}

fn check_submitter(name: &str) -> Result<(), InvalidRequest> {
    let is_sound = (1..=SUBMITTER_MAX).contains(&name.chars().count()) && !name.chars().any(char::is_control);
    if is_sound {
        Ok(())
    } else {
        Err(InvalidRequest::BadSubmitter(name.chars().take(SUBMITTER_MAX).collect()))
    }
}

fn check_env<'a>(env: impl Iterator<Item = (&'a String, &'a String)>) -> Result<(), InvalidRequest> {
    for (name, value) in env {
        if name.is_empty() || name.contains('=') {
            return Err(InvalidRequest::BadEnvName { name: name.clone() });
        }
        if name.contains('\0') || value.contains('\0') {
            return Err(InvalidRequest::Nul { field: "env" });
        }
    }
    Ok(())
}

fn check_outputs(patterns: &[String]) -> Result<(), InvalidRequest> {
    let bytes = patterns.iter().map(String::len).sum();
    if bytes > OUTPUTS_BYTES_MAX {
        return Err(InvalidRequest::ManyOutputs { bytes });
    }
    patterns.iter().try_for_each(|pattern| check_output(pattern))
}

fn check_output(pattern: &str) -> Result<(), InvalidRequest> {
    let leaves =
        pattern.is_empty() || pattern.starts_with('/') || pattern.split('/').any(|part| part == "..");
    if leaves {
        return Err(InvalidRequest::OutputLeaves { pattern: pattern.to_owned() });
    }
    if pattern.contains('\0') {
        return Err(InvalidRequest::Nul { field: "outputs" });
    }
    read_glob(pattern).map_err(InvalidRequest::OutputGlob).map(drop)
}

fn check_context(context: &Context) -> Result<(), InvalidRequest> {
    let bad =
        |field, value: &str, wanted| InvalidRequest::BadContext { field, value: value.to_owned(), wanted };
    match context {
        Context::Directory { path, .. } if !path.starts_with('/') => {
            Err(bad("path", path, "expected an absolute path"))
        }
        Context::Archive { location, .. }
            if !["/", "http://", "https://"].iter().any(|start| location.starts_with(start)) =>
        {
            Err(bad("location", location, "expected an absolute path or an http(s) URL"))
        }
        // Git would read a leading dash as an option.
        Context::Git { url, .. } if url.is_empty() || url.starts_with('-') => {
            Err(bad("url", url, "expected a git URL"))
        }
        // These helpers run commands on the worker or read its open files.
        Context::Git { url, .. } if ["ext::", "fd::"].iter().any(|helper| url.starts_with(helper)) => {
            Err(bad("url", url, "expected a git URL, without the helpers ext:: and fd::"))
        }
        Context::Git { revision, .. } if revision.contains('\0') => {
            Err(InvalidRequest::Nul { field: "context" })
        }
        Context::Git { revision, .. } if revision.is_empty() || revision.starts_with('-') => {
            Err(bad("revision", revision, "expected a commit, tag or branch"))
        }
        Context::Tree { digest, .. } if digest.function != DigestFunction::Sha256 => {
            Err(bad("digest", &digest.to_string(), "expected the SHA-256 digest of a folder: HASH/SIZE"))
        }
        Context::Directory { path: text, .. }
        | Context::Tree { source: Some(text), .. }
        | Context::Archive { location: text, .. }
        | Context::Git { url: text, .. }
            if text.contains('\0') =>
        {
            Err(InvalidRequest::Nul { field: "context" })
        }
        Context::Empty
        | Context::Directory { .. }
        | Context::Tree { .. }
        | Context::Archive { .. }
        | Context::Git { .. } => Ok(()),
    }
}

fn ranged(field: &'static str, asked: Option<u64>, default: u64, max: u64) -> Result<u64, InvalidRequest> {
    match asked {
        None => Ok(default),
        Some(value) if (1..=max).contains(&value) => Ok(value),
        Some(value) => Err(InvalidRequest::OutOfRange { field, value, max }),
    }
}

#[cfg(test)]
mod tests;
