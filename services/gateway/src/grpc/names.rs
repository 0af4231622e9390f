//! Resource names: operations, and the live output of executions.

use std::{fmt, str::FromStr};

use model::{ExecutionKey, OutputStream};
use tonic::Status;

/// The name of an operation: `{instance/}operations/GROUP/ID`. It contains all that a gateway needs
/// to find the execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OperationName {
    /// The instance name that the client used.
    pub(crate) instance: String,
    pub(crate) key: ExecutionKey,
}

/// The text is not an operation name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid operation name {name:?}: expected {{instance/}}operations/GROUP/ID")]
pub(crate) struct OperationNameError {
    name: String,
}

impl From<OperationNameError> for Status {
    /// An unknown form of name means an unknown operation: on `NOT_FOUND` clients execute the action again.
    fn from(error: OperationNameError) -> Self {
        if error.name.is_empty() {
            return Self::invalid_argument("the operation name is not set");
        }
        Self::not_found(error.to_string())
    }
}

impl fmt::Display for OperationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        prefix(&self.instance, f)?;
        write!(f, "operations/{}", self.key)
    }
}

impl FromStr for OperationName {
    type Err = OperationNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || OperationNameError { name: text.chars().take(200).collect() };
        let mut parts = text.rsplitn(4, '/');
        let (id, group, word) = (parts.next(), parts.next(), parts.next());
        let instance = parts.next();
        if word != Some("operations") || instance == Some("") {
            return Err(wrong());
        }
        let key = ExecutionKey {
            group: group.and_then(|group| group.parse().ok()).ok_or_else(wrong)?,
            id: id.and_then(|id| id.parse().ok()).ok_or_else(wrong)?,
        };
        let instance = instance.unwrap_or_default().to_owned();
        reapi::instance::check(&instance).map_err(|_| wrong())?;
        Ok(Self { instance, key })
    }
}

/// One output of an execution, as a log stream: `{instance/}logstreams/live.GROUP.ID.STREAM`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveName {
    pub(crate) key: ExecutionKey,
    pub(crate) stream: OutputStream,
}

impl LiveName {
    /// The resource name under `instance`.
    pub(crate) fn resource(&self, instance: &str) -> String {
        let slash = if instance.is_empty() { "" } else { "/" };
        let stream = self.stream.as_str();
        format!("{instance}{slash}logstreams/live.{}.{}.{stream}", self.key.group, self.key.id)
    }

    /// Parses the last segment of a resource name; `None` for the id of a stream that a client created.
    pub(crate) fn of(id: &str) -> Option<Self> {
        let mut parts = id.strip_prefix("live.")?.split('.');
        let key = ExecutionKey { group: parts.next()?.parse().ok()?, id: parts.next()?.parse().ok()? };
        let stream = match (parts.next()?, parts.next()) {
            ("stdout", None) => OutputStream::Stdout,
            ("stderr", None) => OutputStream::Stderr,
            _ => return None,
        };
        Some(Self { key, stream })
    }
}

fn prefix(instance: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if instance.is_empty() { Ok(()) } else { write!(f, "{instance}/") }
}

#[cfg(test)]
mod tests {
    use model::ExecutionId;

    use super::*;

    fn key() -> ExecutionKey {
        ExecutionKey { group: "web".parse().unwrap(), id: ExecutionId::generate() }
    }

    #[test]
    fn an_operation_name_reads_what_it_writes() {
        for instance in ["", "main", "a/b/c"] {
            let name = OperationName { instance: instance.to_owned(), key: key() };
            assert_eq!(name.to_string().parse(), Ok(name.clone()));
        }
        let name = OperationName { instance: "main".into(), key: key() };
        assert_eq!(name.to_string(), format!("main/operations/{}", name.key));
    }

    #[test]
    fn what_is_no_operation_name_is_refused() {
        let id = ExecutionId::generate();
        let bad = [
            String::new(),
            "operations".into(),
            "operations/web".into(),
            "operations/web/1".into(),
            format!("operations/we.b/{id}"),
            format!("/operations/web/{id}"),
            format!("x/operation/web/{id}"),
            format!("operations/operations/web/{id}"),
            format!("a//operations/web/{id}"),
            format!("operations/web/{id}/"),
            "é/".repeat(500),
        ];
        for text in bad {
            let error = text.parse::<OperationName>().unwrap_err();
            assert!(error.to_string().len() < 600, "{error}");
        }
    }

    #[test]
    fn live_output_has_a_name() {
        let name = LiveName { key: key(), stream: OutputStream::Stderr };
        let resource = name.resource("a/b");
        assert!(resource.starts_with("a/b/logstreams/live.web."), "{resource}");
        assert_eq!(LiveName::of(resource.rsplit('/').next().unwrap()), Some(name.clone()));
        let read = reapi::resource::ReadName::parse(&name.resource("")).unwrap();
        assert!(
            matches!(read, reapi::resource::ReadName::Log { ref id, .. } if LiveName::of(id) == Some(name))
        );
        for other in ["live", "live.web", "live.web.1.stdout", "abc", "live.web.x.stdin"] {
            assert_eq!(LiveName::of(other), None, "{other}");
        }
    }
}
