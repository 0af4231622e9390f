//! From a request to a build: everything that can be refused without running it.

use std::collections::BTreeSet;

use crate::{
    Attempt, Build, BuildId, BuildJob, BuildRequest, Context, Digest, Esu, ExecutorType, Group, JobSource,
    Millis, Priority, RequestLimits,
};

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// Neither the body nor the header names the build.
    #[error("the build has no id: give a UUID as field id, or GROUP/UUID as header Nats-Msg-Id")]
    NoId,
    /// Header and body disagree.
    #[error("field id is {body} but header Nats-Msg-Id is {header}")]
    IdMismatch {
        /// In the body.
        body: BuildId,
        /// In the header.
        header: BuildId,
    },
    /// The subject is the right to use a group; the body cannot name another.
    #[error("field group is {body} but the call is for group {subject}")]
    GroupMismatch {
        /// In the body.
        body: Group,
        /// In the subject.
        subject: Group,
    },
    /// Likewise for the priority.
    #[error("field priority is {body} but the subject's priority is {subject}")]
    PriorityMismatch {
        /// In the body.
        body: Priority,
        /// In the subject.
        subject: Priority,
    },
    /// Nothing to run.
    #[error("field command is empty: give the program and its arguments, or a job")]
    EmptyCommand,
    /// Two things to run.
    #[error("a build has a command or a job, not both")]
    CommandAndJob,
    /// Who would get them?
    #[error("field env is for a build's command: the tasks of a job have their own env, and its defaults")]
    EnvOfJob,
    /// Nobody's name.
    #[error(
        "field submitter is {0:?}: 1 to {SUBMITTER_MAX} characters are expected, none of them a control character"
    )]
    BadSubmitter(String),
    /// A NUL byte can be passed to no process.
    #[error("field {field} holds a NUL byte")]
    Nul {
        /// Which field.
        field: &'static str,
    },
    /// Not the name of an environment variable.
    #[error("field env names {name:?}: a name without '=' is expected")]
    BadEnvName {
        /// The name.
        name: String,
    },
    /// An output outside the workspace.
    #[error("output {pattern:?} leaves the workspace: a relative glob without '..' is expected")]
    OutputLeaves {
        /// The glob.
        pattern: String,
    },
    /// A context location that is neither an absolute path nor a URL.
    #[error("context {field} {value:?} is not valid: {wanted}")]
    BadContext {
        /// Which field of the context.
        field: &'static str,
        /// What it says.
        value: String,
        /// What is expected.
        wanted: &'static str,
    },
    /// No executor of this farm has that type.
    #[error("executor type {name} is unknown here; known are {known}")]
    UnknownExecutorType {
        /// What was asked for.
        name: ExecutorType,
        /// What there is.
        known: String,
    },
    /// Less than nothing, or more than any farm has.
    #[error("field occupancy says {amount} ESU of {kind}: 0 to {OCCUPANCY_MAX} is expected")]
    BadOccupancy {
        /// Of what.
        kind: ExecutorType,
        /// How much.
        amount: Esu,
    },
    /// A number out of its range.
    #[error("field {field} is {value}: 1 to {max} is expected")]
    OutOfRange {
        /// Which field.
        field: &'static str,
        /// What it says.
        value: u64,
        /// The most that is allowed.
        max: u64,
    },
}

/// A build whose occupancy is yet to be estimated where the request did not say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The build; its occupancy is what the request said.
    pub build: Build,
    /// Executor types that the request named.
    pub executor_types: BTreeSet<ExecutorType>,
    /// The job, where it is one: yet to be checked and stored. The build has its digest.
    pub job: Option<JobSource>,
}

impl BuildRequest {
    /// Checks the request and fills its defaults.
    ///
    /// `header_id` is the `Nats-Msg-Id` of a plain publish; `subject_priority` is absent where the
    /// subject names none (the API).
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
        self.outputs.iter().try_for_each(|pattern| check_output(pattern))?;
        check_context(&self.context)?;
        self.check_occupancy(limits)?;
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
            job: self.job.as_ref().map(|job| BuildJob { digest: job.digest(), tasks: 0 }),
            env: self.env,
            context: self.context,
            timeout_seconds,
            queue_timeout_seconds,
            lease_ttl_seconds,
            max_attempts: Attempt(u32::try_from(attempts).unwrap_or(u32::MAX)),
            outputs: self.outputs,
            require_outputs: self.require_outputs,
            labels: self.labels,
            submitter: self.submitter,
            expected_ms: None,
            tool: self.tool,
            workspace: self.workspace,
            occupancy: self.occupancy,
            estimated_by: None,
            submitted_at_ms: now,
            request_digest: Digest::of(b""),
            traceparent: None,
        };
        build.request_digest = build.content_digest(&self.executor_types);
        Ok(Accepted { build, executor_types: self.executor_types, job: self.job })
    }

    /// Whether there is one thing to run.
    fn check_work(&self) -> Result<(), InvalidRequest> {
        match &self.job {
            None => {
                check_command(&self.command)?;
                check_env(self.env.iter())
            }
            Some(_) if !self.command.is_empty() => Err(InvalidRequest::CommandAndJob),
            Some(_) if !self.env.is_empty() => Err(InvalidRequest::EnvOfJob),
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

/// ESU of a type that one build may say that it occupies.
const OCCUPANCY_MAX: Esu = Esu::from_micros(100_000 * 1_000_000);
/// Characters of a submitter's name.
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

fn check_output(pattern: &str) -> Result<(), InvalidRequest> {
    let leaves =
        pattern.is_empty() || pattern.starts_with('/') || pattern.split('/').any(|part| part == "..");
    if leaves {
        return Err(InvalidRequest::OutputLeaves { pattern: pattern.to_owned() });
    }
    if pattern.contains('\0') {
        return Err(InvalidRequest::Nul { field: "outputs" });
    }
    Ok(())
}

fn check_context(context: &Context) -> Result<(), InvalidRequest> {
    let bad =
        |field, value: &str, wanted| InvalidRequest::BadContext { field, value: value.to_owned(), wanted };
    match context {
        Context::Directory { path, .. } if !path.starts_with('/') => {
            Err(bad("path", path, "an absolute path is expected"))
        }
        Context::Archive { location, .. }
            if !["/", "http://", "https://"].iter().any(|start| location.starts_with(start)) =>
        {
            Err(bad("location", location, "an absolute path or an http(s) URL is expected"))
        }
        // A leading dash would be an option to git.
        Context::Git { url, .. } if url.is_empty() || url.starts_with('-') => {
            Err(bad("url", url, "a git URL is expected"))
        }
        // These run commands of the worker, or read what it has open.
        Context::Git { url, .. } if ["ext::", "fd::"].iter().any(|helper| url.starts_with(helper)) => {
            Err(bad("url", url, "a git URL is expected, and none of ext:: or fd::"))
        }
        Context::Git { revision, .. } if revision.contains('\0') => {
            Err(InvalidRequest::Nul { field: "context" })
        }
        Context::Git { revision, .. } if revision.is_empty() || revision.starts_with('-') => {
            Err(bad("revision", revision, "a commit, tag or branch is expected"))
        }
        Context::Directory { path: text, .. }
        | Context::Archive { location: text, .. }
        | Context::Git { url: text, .. }
            if text.contains('\0') =>
        {
            Err(InvalidRequest::Nul { field: "context" })
        }
        Context::Empty | Context::Directory { .. } | Context::Archive { .. } | Context::Git { .. } => Ok(()),
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
