//! Parsing of requests: path parameters, query parameters, and a body of bounded size.

use std::{collections::HashMap, str::FromStr, sync::LazyLock};

use axum::{
    body::Body,
    extract::{FromRequestParts, Path, Query},
    http::{HeaderMap, HeaderName, StatusCode, header, request::Parts},
};
use bus::{Encoding, FromClient, Message as _};
use bytes::{Bytes, BytesMut};
use callers::{Caller, Shares};
use futures::StreamExt as _;
use invariant::impossible;
use listener::TooSlow;
use model::{
    BuildKey, BuildRequest, Digest, Group, InvocationId, Outcome, ParseIdError, State, ToolInvocation,
};
use tokio::sync::Semaphore;

use crate::failure::Failure;

/// The path parameters of a request.
#[derive(Debug)]
pub struct PathParameters(HashMap<String, String>);

impl PathParameters {
    /// The build that the path names.
    pub fn key(&self) -> Result<BuildKey, Failure> {
        Ok(BuildKey { group: self.group()?, id: self.text("id").parse()? })
    }

    /// The group that the path names.
    pub fn group(&self) -> Result<Group, Failure> {
        Ok(self.text("group").parse()?)
    }

    /// The invocation that the path names.
    pub fn invocation(&self) -> Result<InvocationId, Failure> {
        Ok(self.text("id").parse()?)
    }

    /// The call of a build tool that the path names.
    pub fn tool_invocation(&self) -> Result<ToolInvocation, Failure> {
        Ok(self.text("id").parse()?)
    }

    /// The digest that the path names.
    pub fn digest(&self) -> Result<Digest, Failure> {
        Ok(self.text("digest").parse()?)
    }

    /// The unparsed value of a parameter that the route has.
    pub fn text(&self, name: &str) -> &str {
        let Some(value) = self.0.get(name) else {
            impossible!("the route has no parameter {name:?}");
            return "";
        };
        value
    }
}

impl<S: Send + Sync> FromRequestParts<S> for PathParameters {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let Path(names) = Path::from_request_parts(parts, state).await?;
        Ok(Self(names))
    }
}

/// The query parameters of a request.
#[derive(Debug)]
pub struct QueryParameters(Vec<(String, String)>);

impl QueryParameters {
    /// All values of the parameter `name`.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The last value of the parameter `name`.
    pub fn last(&self, name: &str) -> Option<String> {
        self.all(name).last().map(ToOwned::to_owned)
    }

    /// Without the parameters that have no value: forms send all fields.
    #[must_use]
    pub fn without_empty(self) -> Self {
        Self(self.0.into_iter().filter(|(_, value)| !value.is_empty()).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The query with another value of the parameter `name`, as it is in a URL.
    pub fn with(&self, name: &str, value: &str) -> String {
        let others = self
            .0
            .iter()
            .filter(|(other, _)| other != name)
            .map(|(name, value)| (name.as_str(), value.as_str()));
        url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(others)
            .append_pair(name, value)
            .finish()
    }

    /// The last value of the parameter `name`, as an id or a name.
    pub fn parsed<T: FromStr<Err = ParseIdError>>(&self, name: &str) -> Result<Option<T>, Failure> {
        Ok(self.all(name).last().map(str::parse).transpose()?)
    }

    /// The last value of the parameter `name`, as a number.
    pub fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, Failure> {
        self.all(name).last().map(|text| number(name, text)).transpose()
    }

    /// The last value of the parameter `state`.
    pub fn state(&self) -> Result<Option<State>, Failure> {
        let states = [State::Enqueued, State::InProgress, State::Finished];
        let parse = |text: &str| {
            states.into_iter().find(|state| state.as_str().eq_ignore_ascii_case(text)).ok_or_else(|| {
                Failure::invalid(format!(
                    "invalid state {text:?}: expected ENQUEUED, IN_PROGRESS or FINISHED"
                ))
            })
        };
        self.all("state").last().map(parse).transpose()
    }

    /// The last value of the parameter `outcome`.
    pub fn outcome(&self) -> Result<Option<Outcome>, Failure> {
        let parse = |text: &str| {
            Outcome::ALL.into_iter().find(|outcome| outcome.as_str().eq_ignore_ascii_case(text)).ok_or_else(
                || {
                    let known = Outcome::ALL.map(Outcome::as_str).join(", ");
                    Failure::invalid(format!("invalid outcome {text:?}: expected one of {known}"))
                },
            )
        };
        self.all("outcome").last().map(parse).transpose()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for QueryParameters {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let Query(pairs) = Query::from_request_parts(parts, state).await?;
        Ok(Self(pairs))
    }
}

/// Parses a whole number; `name` is its query parameter or header.
pub(crate) fn number<T: FromStr>(name: &str, text: &str) -> Result<T, Failure> {
    text.trim()
        .parse()
        .map_err(|_| Failure::invalid(format!("invalid {name} {text:?}: expected a whole number")))
}

/// The value of a header, if it is visible ASCII.
pub fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Maximum value of whole numbers in queries: the greatest that SQL stores.
pub(crate) const INTEGER_MAX: u64 = i64::MAX as u64;

/// Maximum number of bytes read from a body that is too large. The excess is read and discarded, because a client
/// that is still sending does not read the error.
const DISCARDED_BYTES_MAX: usize = 16 << 20;

/// Reads a whole body of at most `limit` bytes.
pub(crate) async fn read(body: Body, limit: usize) -> Result<Bytes, Failure> {
    let mut parts = body.into_data_stream();
    let mut content = BytesMut::new();
    let mut length = 0;
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| broke_off(&error))?;
        length += part.len();
        if length <= limit {
            content.extend_from_slice(&part);
        } else if length > DISCARDED_BYTES_MAX {
            break;
        }
    }
    if length > limit {
        return Err(too_large("the request body", limit));
    }
    Ok(content.freeze())
}

fn too_large(what: &str, limit: usize) -> Failure {
    let message = format!("{what} exceeds the limit of {limit} bytes");
    Failure::invalid(message).with_status(StatusCode::PAYLOAD_TOO_LARGE)
}

fn broke_off(error: &axum::Error) -> Failure {
    let failure = Failure::invalid(format!("the request body ended early: {error}"));
    if TooSlow::is_in(error) { failure.with_status(StatusCode::REQUEST_TIMEOUT) } else { failure }
}

/// Decodes a JSON or MessagePack body.
pub(crate) fn decode<T: FromClient>(headers: &HeaderMap, body: &[u8]) -> Result<T, Failure> {
    let encoding = Encoding::of(header_text(headers, header::CONTENT_TYPE), body);
    T::decode(encoding, body).map_err(|error| Failure::invalid(telemetry::error_chain(&error)))
}

/// Requests as YAML are parsed one at a time: a hostile one takes seconds.
static PARSING: Semaphore = Semaphore::const_new(1);
/// Of each caller, one waits for that: those of others wait for few.
static ASKING: LazyLock<Shares> = LazyLock::new(|| Shares::new(1));

/// Media types of YAML.
const YAML: [&str; 4] = ["application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"];

/// Decodes the request for a build: JSON or MessagePack, or YAML, which may also be only its job. As JSON, a request from
/// YAML may have at most `limit` bytes.
pub(crate) async fn decode_build(
    headers: &HeaderMap,
    caller: &Caller,
    body: Bytes,
    limit: usize,
) -> Result<BuildRequest, Failure> {
    let media_type = header_text(headers, header::CONTENT_TYPE).unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    if !YAML.iter().any(|yaml| yaml.eq_ignore_ascii_case(media_type)) {
        return decode(headers, &body);
    }
    // Never closed: only then there would be no turn.
    let turns = (ASKING.turn(caller).await, PARSING.acquire().await);
    // Whether the client still waits or not, the turn ends with the parser.
    let parsed = tokio::task::spawn_blocking(move || {
        let _turns = turns;
        let text =
            std::str::from_utf8(&body).map_err(|error| format!("the request body is not UTF-8: {error}"));
        text.and_then(|text| BuildRequest::from_yaml(text).map_err(|invalid| invalid.to_string()))
    });
    let parsed =
        parsed.await.map_err(|error| Failure::invalid(format!("the request cannot be parsed: {error}")))?;
    let request = parsed.map_err(Failure::invalid)?;
    // Aliases can make a short text a long request.
    let length = request.to_json().len();
    if length > limit { Err(too_large("the request as JSON", limit)) } else { Ok(request) }
}

#[cfg(test)]
mod tests {
    use super::{Body, QueryParameters, State, number, read};

    fn pairs(pairs: &[(&str, &str)]) -> QueryParameters {
        QueryParameters(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn queries() {
        let query = pairs(&[("kind", "console"), ("limit", "7"), ("kind", "tool"), ("state", "in_progress")]);
        assert_eq!(query.all("kind").collect::<Vec<_>>(), ["console", "tool"]);
        assert_eq!(query.number::<usize>("limit").unwrap(), Some(7));
        assert_eq!(query.number::<usize>("from").unwrap(), None);
        assert_eq!(query.state().unwrap(), Some(State::InProgress));
        assert!(pairs(&[("limit", "-1")]).number::<usize>("limit").is_err());
        assert!(pairs(&[("state", "DONE")]).state().is_err());
        assert!(number::<u64>("Last-Event-ID", " 12 ").is_ok());
    }

    #[tokio::test]
    async fn bodies_are_bounded() {
        assert_eq!(read(Body::from("12345"), 5).await.unwrap(), "12345");
        assert!(read(Body::from("123456"), 5).await.is_err());
        assert!(read(Body::empty(), 5).await.unwrap().is_empty());
    }
}
