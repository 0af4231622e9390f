//! Who did what to a farm, and whom it refused: the events of the audit stream.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Millis, ParseIdError, Sequence};

/// Maximum number of characters of a text in an audit event.
const TEXT_MAX: usize = 300;

/// What an audit event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditKind {
    /// A call was refused: its credentials, its rights or its limits did not suffice.
    Refusal,
    /// A caller was let in; at most once a minute for each caller and address.
    Grant,
    /// A build or an operation was cancelled.
    Cancel,
    /// A quota was set or removed.
    Quota,
    /// A worker or an executor was ordered to drain, or to accept work again.
    Drain,
    /// A version of an environment was proposed, approved or removed.
    Environment,
    /// A build was submitted again, or an action was run again.
    RunAgain,
    /// Results were deleted from the action cache.
    Purge,
    /// A user of the bus was added, changed or removed, its key was replaced, or a key for gateways was made.
    Access,
    /// A person signed in on the pages.
    Login,
    /// A person signed out on the pages.
    Logout,
}

impl AuditKind {
    /// All kinds, in the order of declaration.
    pub const ALL: [Self; 11] = [
        Self::Refusal,
        Self::Grant,
        Self::Cancel,
        Self::Quota,
        Self::Drain,
        Self::Environment,
        Self::RunAgain,
        Self::Purge,
        Self::Access,
        Self::Login,
        Self::Logout,
    ];

    /// Name in messages, and the token in the subject.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refusal => "refusal",
            Self::Grant => "grant",
            Self::Cancel => "cancel",
            Self::Quota => "quota",
            Self::Drain => "drain",
            Self::Environment => "environment",
            Self::RunAgain => "run_again",
            Self::Purge => "purge",
            Self::Access => "access",
            Self::Login => "login",
            Self::Logout => "logout",
        }
    }

    /// What was decided about calls of this kind.
    pub fn decision(self) -> AuditDecision {
        match self {
            Self::Refusal => AuditDecision::Refused,
            Self::Grant
            | Self::Cancel
            | Self::Quota
            | Self::Drain
            | Self::Environment
            | Self::RunAgain
            | Self::Purge
            | Self::Access
            | Self::Login
            | Self::Logout => AuditDecision::Allowed,
        }
    }
}

impl fmt::Display for AuditKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for AuditKind {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        let wanted = "expected refusal, grant, cancel, quota, drain, environment, run_again, purge, access, login or logout";
        found.ok_or_else(|| ParseIdError::new("kind of audit event", text, wanted))
    }
}

/// Whether a call was allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditDecision {
    /// It was done, or its caller was let in.
    Allowed,
    /// The call changed nothing.
    Refused,
}

impl AuditDecision {
    /// Name in messages and pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Refused => "refused",
        }
    }
}

/// How a caller proved its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditProof {
    /// By an API key of the access rules.
    Key,
    /// By a token of an issuer.
    Token,
    /// By a client certificate.
    Certificate,
    /// By the token of a build.
    Build,
    /// By signing in on the pages.
    Session,
    /// It proved nothing; access rules let everyone in, or there are none.
    Nothing,
    /// A client of the bus stated its name, and no service has checked it.
    Stated,
}

impl AuditProof {
    /// All proofs, in the order of declaration.
    pub const ALL: [Self; 7] =
        [Self::Key, Self::Token, Self::Certificate, Self::Build, Self::Session, Self::Nothing, Self::Stated];

    /// Name in messages and pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Token => "token",
            Self::Certificate => "certificate",
            Self::Build => "build",
            Self::Session => "session",
            Self::Nothing => "nothing",
            Self::Stated => "stated",
        }
    }
}

/// One line of text of at most 300 characters. Characters that control a terminal, break a line or change the direction of
/// text are replaced: others choose these texts, and people read them in logs, terminals and pages.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String")]
pub struct AuditText(String);

impl AuditText {
    /// The text with its replacements.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whether a character may change how a reader sees the text around it.
fn is_deceptive(it: char) -> bool {
    it.is_control()
        || matches!(it, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

impl From<&str> for AuditText {
    fn from(text: &str) -> Self {
        let plain = |it| if is_deceptive(it) { char::REPLACEMENT_CHARACTER } else { it };
        Self(text.chars().take(TEXT_MAX).map(plain).collect())
    }
}

impl From<String> for AuditText {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl fmt::Display for AuditText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Something that was done to a farm, or refused. JSON on `forebay.audit.<kind>`; written by gateways, `web`, `cas`,
/// enqueuers and the command line, read by the archive and by `forebay audit`. It has no content of calls and no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEvent {
    /// Time of the call.
    pub at_ms: Millis,
    pub kind: AuditKind,
    pub decision: AuditDecision,
    /// Name of the caller, as access rules know it; empty if it has none.
    #[serde(default)]
    pub who: AuditText,
    pub proof: AuditProof,
    /// Address from which the call came; absent for calls over the bus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<AuditText>,
    /// Route of HTTP without its values, method of gRPC, subject of the bus, or command.
    pub call: AuditText,
    /// What the call was about: path of the request, build, worker, group, environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<AuditText>,
    /// Why it was refused, or what was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<AuditText>,
    /// Process that wrote the event.
    pub source: AuditText,
    /// Number of further events of this caller that the process left out before this one, because they were too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde passes it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Request of `forebay.archive.audit`: audit events, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditRequest {
    /// Only events of this caller; with `*` at its end, of callers whose names begin so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// Only events of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<AuditKind>,
    /// Only events about this target; with `*` at its end, about targets that begin so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Only events at this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<Millis>,
    /// The `next` of an earlier reply; absent: the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Maximum number of events: 1 to 1,000; default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl AuditRequest {
    /// Whether an event matches all conditions.
    pub fn matches(&self, event: &AuditEvent) -> bool {
        let text = |wanted: &Option<String>, actual: &str| {
            wanted.as_deref().is_none_or(|wanted| match wanted.strip_suffix('*') {
                Some(beginning) => actual.starts_with(beginning),
                None => actual == wanted,
            })
        };
        let target = event.target.as_ref().map(AuditText::as_str).unwrap_or_default();
        text(&self.who, event.who.as_str())
            && text(&self.target, target)
            && self.kind.is_none_or(|kind| kind == event.kind)
            && self.since_ms.is_none_or(|since| event.at_ms >= since)
    }
}

/// An audit event at its position in the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    /// Position in the audit stream.
    pub position: Sequence,
    #[serde(flatten)]
    pub event: AuditEvent,
}

/// Reply to `forebay.archive.audit`, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct AuditReply {
    /// The events, in the order of the stream, the last one first.
    pub events: Vec<AuditEntry>,
    /// The cursor of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in AuditKind::ALL {
            assert_eq!(kind.as_str().parse::<AuditKind>().unwrap(), kind);
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        for proof in AuditProof::ALL {
            assert_eq!(serde_json::to_value(proof).unwrap(), proof.as_str());
        }
        assert!("refusals".parse::<AuditKind>().unwrap_err().to_string().contains("run_again"));
    }

    #[test]
    fn o4_texts_of_others_stay_in_their_line() {
        let text = AuditText::from("a\r\nb\u{1b}[2J\u{202e}c\u{2028}d\u{200b}");
        assert_eq!(text.as_str(), "a\u{fffd}\u{fffd}b\u{fffd}[2J\u{fffd}c\u{fffd}d\u{fffd}");
        // Also if another process wrote the message.
        let read: AuditText = serde_json::from_str(r#""a\nb""#).unwrap();
        assert_eq!(read.as_str(), "a\u{fffd}b");
    }

    proptest! {
        #[test]
        fn no_text_is_long_or_has_lines(text in ".{0,400}") {
            let text = AuditText::from(text);
            prop_assert!(text.as_str().chars().count() <= TEXT_MAX);
            prop_assert!(!text.as_str().chars().any(is_deceptive));
        }
    }
}
