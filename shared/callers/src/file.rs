//! The file with the access rules, as TOML.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use disk::regular_bytes;
use model::{Group, Priority};
use policy::{
    access::{AccessRules, Expected, Reach, Right, Rights, Who},
    limits::CallerLimits,
    rate::Rate,
    zones::{ZoneReach, Zones},
};
use serde::Deserialize;

use crate::{
    issuer::{Issuer, KeySource},
    key::KeyHash,
    provider::{ClientConfig, Provider, is_secure},
};

/// Maximum bytes of the file.
const BYTES_MAX: u64 = 1 << 20;
/// How long a session lasts, if the file does not say it.
const SESSION_LIFETIME: Duration = Duration::from_secs(8 * 3600);
/// Maximum lifetime of a session that a file may give.
const SESSION_LIFETIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// A file of access rules that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessFileError {
    #[error("cannot read the access rules {path}")]
    Read {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("the access rules {path} have more than {BYTES_MAX} bytes")]
    TooLong { path: String },
    #[error("invalid access rules {path}: {source}")]
    Syntax {
        path: String,
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error("invalid access rules {path}: {entry}: {wanted}")]
    Entry {
        path: String,
        /// The entry, for example `keys[2]` or `rules[1]`, counted from 1.
        entry: String,
        wanted: String,
    },
    #[error(
        "invalid access rules {path}: people sign in with {issuer}, for which the setting session_key_file is missing"
    )]
    NoSessionKey { path: String, issuer: String },
    /// A file that is being written is empty for a moment.
    #[error("invalid access rules {path}: there are no rules, so no caller would have a right")]
    NoRules { path: String },
}

/// What a file contains.
#[derive(Debug)]
pub(crate) struct AccessFile {
    pub(crate) keys: HashMap<KeyHash, KeyEntry>,
    pub(crate) issuers: Vec<Issuer>,
    pub(crate) rules: AccessRules,
    /// How long people stay signed in.
    pub(crate) session_lifetime: Duration,
}

/// An API key that callers may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEntry {
    /// Its name in rules, in logs and as the submitter of builds.
    pub name: String,
    /// It is not accepted from this time on.
    pub expires: Option<SystemTime>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    session_lifetime: Option<String>,
    #[serde(default)]
    keys: Vec<WrittenKey>,
    #[serde(default)]
    issuers: Vec<WrittenIssuer>,
    #[serde(default)]
    rules: Vec<WrittenRule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenKey {
    name: String,
    sha256: String,
    expires: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenIssuer {
    name: String,
    url: String,
    #[serde(default)]
    audience: Vec<String>,
    keys_url: Option<String>,
    keys_file: Option<PathBuf>,
    #[serde(default)]
    algorithms: Vec<String>,
    login: Option<WrittenLogin>,
}

/// How people sign in on the pages with an issuer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLogin {
    client_id: String,
    client_secret_file: Option<PathBuf>,
    #[serde(default = "usual_scopes")]
    scopes: Vec<String>,
    title: Option<String>,
}

fn usual_scopes() -> Vec<String> {
    ["openid", "profile", "email"].map(str::to_owned).into()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    key: Option<String>,
    certificate: Option<String>,
    issuer: Option<String>,
    #[serde(default)]
    claims: BTreeMap<String, String>,
    #[serde(default)]
    anyone: bool,
    #[serde(default)]
    groups: Vec<String>,
    zone: Option<String>,
    priorities: Option<Vec<String>>,
    rights: Vec<String>,
    #[serde(default)]
    limits: WrittenLimits,
}

/// Limits of a caller on each gateway; what is absent is not limited.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLimits {
    builds_per_second: Option<f64>,
    builds_at_once: Option<u64>,
    calls_per_second: Option<f64>,
    calls_at_once: Option<u64>,
    upload_bytes_per_second: Option<f64>,
    watches: Option<u32>,
    connections: Option<u32>,
}

impl WrittenLimits {
    fn check(&self) -> Result<CallerLimits, String> {
        Ok(CallerLimits {
            builds: rate("builds", self.builds_per_second, self.builds_at_once)?,
            calls: rate("calls", self.calls_per_second, self.calls_at_once)?,
            // As much at once as in a second.
            upload: rate("upload_bytes", self.upload_bytes_per_second, None)?,
            watches: self.watches,
            connections: self.connections,
        })
    }
}

/// A rate per second. Without a burst, as many at once as in a second, and at least 1.
fn rate(of: &str, per_second: Option<f64>, at_once: Option<u64>) -> Result<Option<Rate>, String> {
    let Some(per_second) = per_second else {
        return match at_once {
            None => Ok(None),
            Some(_) => Err(format!("limits: expected {of}_per_second beside {of}_at_once")),
        };
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let in_a_second = (per_second.ceil() as u64).max(1);
    let rate = Rate::new(per_second, at_once.unwrap_or(in_a_second));
    rate.map(Some).map_err(|error| format!("limits: {of}_per_second: {error}"))
}

impl AccessFile {
    /// Reads and checks a file.
    pub(crate) fn read(path: &Path, zones: &Zones) -> Result<Self, AccessFileError> {
        let name = path.display().to_string();
        let unreadable = |source| AccessFileError::Read { path: name.clone(), source };
        if regular_bytes(path).map_err(unreadable)? > BYTES_MAX {
            return Err(AccessFileError::TooLong { path: name });
        }
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        Self::parse(&name, &text, zones)
    }

    pub(crate) fn parse(path: &str, text: &str, zones: &Zones) -> Result<Self, AccessFileError> {
        let written: Written = toml::from_str(text)
            .map_err(|source| AccessFileError::Syntax { path: path.to_owned(), source: Box::new(source) })?;
        let wrong = |list: &str, at: usize, wanted: String| AccessFileError::Entry {
            path: path.to_owned(),
            entry: format!("{list}[{}]", at + 1),
            wanted,
        };
        let mut keys = HashMap::new();
        for (at, key) in written.keys.into_iter().enumerate() {
            let (hash, entry) = key.check().map_err(|wanted| wrong("keys", at, wanted))?;
            if keys.insert(hash, entry).is_some() {
                return Err(wrong("keys", at, "this key is listed twice".to_owned()));
            }
        }
        let mut issuers: Vec<Issuer> = Vec::new();
        for (at, issuer) in written.issuers.into_iter().enumerate() {
            let issuer = issuer.check().map_err(|wanted| wrong("issuers", at, wanted))?;
            if issuers.iter().any(|other| other.name == issuer.name || other.url == issuer.url) {
                return Err(wrong("issuers", at, "its name or url is already listed".to_owned()));
            }
            issuers.push(issuer);
        }
        let names: Vec<&str> = issuers.iter().map(|issuer| issuer.name.as_str()).collect();
        let rules = written
            .rules
            .into_iter()
            .enumerate()
            .map(|(at, rule)| rule.check(&names, zones).map_err(|wanted| wrong("rules", at, wanted)));
        let rules = AccessRules(rules.collect::<Result<_, _>>()?);
        let session_lifetime = lifetime(written.session_lifetime.as_deref()).map_err(|wanted| {
            AccessFileError::Entry { path: path.to_owned(), entry: "session_lifetime".to_owned(), wanted }
        })?;
        Ok(Self { keys, issuers, rules, session_lifetime })
    }
}

/// How long people stay signed in.
fn lifetime(written: Option<&str>) -> Result<Duration, String> {
    let Some(text) = written else { return Ok(SESSION_LIFETIME) };
    let wanted = || format!("{text:?}: expected a time such as 8h, at least 1s and at most 7d");
    let lifetime = humantime::parse_duration(text).map_err(|_| wanted())?;
    let range = Duration::from_secs(1)..=SESSION_LIFETIME_MAX;
    if range.contains(&lifetime) { Ok(lifetime) } else { Err(wanted()) }
}

/// A name that appears in logs and as the submitter of builds.
fn check_name(name: &str) -> Result<(), String> {
    let is_fine = |at: char| at.is_ascii_alphanumeric() || matches!(at, '-' | '_' | '.' | '@' | '/');
    if (1..=100).contains(&name.len()) && name.chars().all(is_fine) {
        return Ok(());
    }
    Err(format!("name {name:?}: expected 1 to 100 letters, digits, and - _ . @ /"))
}

impl WrittenKey {
    fn check(self) -> Result<(KeyHash, KeyEntry), String> {
        check_name(&self.name)?;
        let hash = self.sha256.parse().map_err(|error| format!("sha256 of {:?}: {error}", self.name))?;
        let expires = self.expires.as_deref().map(|text| {
            humantime::parse_rfc3339_weak(text)
                .map_err(|_| format!("expires {text:?}: expected a time such as 2027-01-31T00:00:00Z"))
        });
        Ok((hash, KeyEntry { name: self.name, expires: expires.transpose()? }))
    }
}

impl WrittenIssuer {
    fn check(self) -> Result<Issuer, String> {
        check_name(&self.name)?;
        if self.audience.is_empty() && self.login.is_none() {
            return Err("audience: expected at least one, as the tokens name this farm".to_owned());
        }
        let login = self.login.map(|login| login.check(&self.name, &self.url)).transpose()?;
        let source = match (self.keys_url, self.keys_file) {
            (Some(url), None) if is_secure(&url) => Ok(url.into()),
            (None, Some(file)) => Ok(file.into()),
            (None, None) if login.is_some() => Ok(KeySource::Provider),
            (Some(url), None) => {
                Err(format!("keys_url {url:?}: expected https://..., or http://127.0.0.1 of this machine"))
            }
            (Some(_), Some(_)) | (None, None) => Err("expected either keys_url or keys_file".to_owned()),
        };
        Issuer::new(self.name, self.url, &self.audience, source?, &self.algorithms, login)
    }
}

impl WrittenLogin {
    fn check(self, name: &str, url: &str) -> Result<Provider, String> {
        if !name.chars().all(|at| at.is_ascii_alphanumeric() || matches!(at, '-' | '_')) {
            return Err(format!(
                "name {name:?}: expected letters, digits, - and _ beside login: it is a part of addresses"
            ));
        }
        if !is_secure(url) {
            return Err(format!("url {url:?}: expected https://... beside login, or http://127.0.0.1"));
        }
        if self.client_id.is_empty() {
            return Err("login: client_id: expected the name that the provider gave to this farm".to_owned());
        }
        let is_scope = |scope: &String| {
            !scope.is_empty() && scope.bytes().all(|at| at.is_ascii_graphic() && at != b'"' && at != b'\\')
        };
        if !self.scopes.iter().all(is_scope) || !self.scopes.iter().any(|scope| scope == "openid") {
            return Err("login: scopes: expected a list of words, openid among them".to_owned());
        }
        let title = self.title.unwrap_or_else(|| name.to_owned());
        if !(1..=60).contains(&title.chars().count()) {
            return Err("login: title: expected 1 to 60 characters".to_owned());
        }
        let client = ClientConfig {
            id: self.client_id,
            secret_file: self.client_secret_file,
            scopes: self.scopes,
            title,
        };
        Ok(Provider::new(url.to_owned(), client))
    }
}

/// The zones that a rule for these groups gives. All groups are in all zones.
fn reach_of(written: Option<&str>, groups: &Reach, zones: &Zones) -> Result<ZoneReach, String> {
    match (written, groups) {
        (Some("*"), _) if zones.are_used() => Ok(ZoneReach::All),
        (None, Reach::All) => Ok(ZoneReach::All),
        (Some(zone), Reach::All) => Err(format!(
            "zone {zone:?}: a rule for all groups reaches all zones; list the groups of the zone"
        )),
        (written, Reach::Listed(groups)) => {
            let chosen = written.map(str::parse).transpose();
            let chosen = chosen.map_err(|error: model::ParseIdError| error.to_string())?;
            zones.reach_of(chosen.as_ref(), groups)
        }
    }
}

impl WrittenRule {
    fn check(self, issuers: &[&str], zones: &Zones) -> Result<(Who, Rights), String> {
        let who = self.who(issuers)?;
        let groups = if self.groups.iter().any(|group| group == "*") {
            Reach::All
        } else {
            let groups =
                self.groups.iter().map(|name| name.parse::<Group>().map_err(|error| error.to_string()));
            Reach::Listed(groups.collect::<Result<_, _>>()?)
        };
        let zone = reach_of(self.zone.as_deref(), &groups, zones)?;
        let rights = self.rights.iter().map(|name| name.parse::<Right>().map_err(|error| error.to_string()));
        let priorities = self.priorities.map_or_else(
            || Ok(Priority::ALL.into_iter().filter(|priority| !priority.is_emergency()).collect()),
            |names| {
                names
                    .iter()
                    .map(|name| name.parse().map_err(|error: model::ParseIdError| error.to_string()))
                    .collect()
            },
        );
        let (rights, limits) = (rights.collect::<Result<_, _>>()?, self.limits.check()?);
        Ok((who, Rights { rights, groups, priorities: priorities?, zone, limits }))
    }

    fn who(&self, issuers: &[&str]) -> Result<Who, String> {
        let expected = |text: &String| match text.as_str() {
            "" => Err("an empty text matches nothing".to_owned()),
            _ => Ok(Expected(text.clone())),
        };
        if self.issuer.is_none() && !self.claims.is_empty() {
            return Err("claims are those of a token: expected issuer beside them".to_owned());
        }
        match (&self.key, &self.certificate, &self.issuer, self.anyone) {
            (Some(key), None, None, false) => Ok(Who::Key(expected(key)?)),
            (None, Some(name), None, false) => Ok(Who::Certificate(expected(name)?)),
            (None, None, Some(issuer), false) if !issuers.contains(&issuer.as_str()) => {
                Err(format!("issuer {issuer:?} is not in the list issuers"))
            }
            (None, None, Some(_), false) if self.claims.is_empty() => {
                Err("expected claims: without them each token of the issuer has these rights".to_owned())
            }
            (None, None, Some(issuer), false) => {
                let claims = self.claims.iter().map(|(name, value)| Ok((name.clone(), expected(value)?)));
                Ok(Who::Token { issuer: issuer.clone(), claims: claims.collect::<Result<_, String>>()? })
            }
            (None, None, None, true) => Ok(Who::Anyone),
            (_, _, _, _) => Err("expected one of key, certificate, issuer and anyone = true".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::access::Proof;

    use super::*;

    fn parse(text: &str) -> Result<AccessFile, String> {
        AccessFile::parse("access.toml", text, &"main=web pulls<main=web-pulls".parse().unwrap())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn rules_give_rights() {
        let hash = "0".repeat(64);
        let file = parse(&format!(
            r#"
            [[keys]]
            name = "ci"
            sha256 = "{hash}"
            expires = "2027-01-31T00:00:00Z"

            [[issuers]]
            name = "github"
            url = "https://token.actions.githubusercontent.com"
            audience = ["forebay"]
            keys_url = "https://token.actions.githubusercontent.com/.well-known/jwks"

            [[rules]]
            key = "ci"
            groups = ["web"]
            rights = ["submit", "read"]

            [[rules]]
            issuer = "github"
            claims = {{ repository = "acme/*" }}
            groups = ["*"]
            priorities = ["emergency"]
            rights = ["execute"]
            "#
        ))
        .unwrap();
        assert_eq!(file.keys.len(), 1);
        let rights = file.rules.rights(&Proof::Key { name: "ci".into() }).unwrap();
        let web = "web".parse().unwrap();
        assert!(rights.check_submit(&web, Priority::Interactive).is_ok());
        // An emergency passes the quota of its group: the right to it must be written.
        assert!(rights.check_submit(&web, Priority::Emergency).is_err());
        let claims = [("repository".to_owned(), vec!["acme/web".to_owned()])].into();
        let proof = Proof::Token { issuer: "github".into(), claims };
        assert_eq!(file.rules.rights(&proof).unwrap().groups, Reach::All);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let hash = "0".repeat(64);
        let key = |more: &str| format!("[[keys]]\nname = \"a\"\nsha256 = \"{hash}\"\n{more}");
        let issuer = "[[issuers]]\nname = \"i\"\nurl = \"https://i\"\naudience = [\"f\"]\n";
        let cases = [
            ("key = 1".to_owned(), "unknown field `key`"),
            (key("expires = \"soon\""), "keys[1]: expires \"soon\""),
            (format!("{}{}", key(""), key("")), "keys[2]: this key is listed twice"),
            ("[[keys]]\nname = \"a b\"\nsha256 = \"\"".into(), "keys[1]: name \"a b\""),
            ("[[keys]]\nname = \"a\"\nsha256 = \"12\"".into(), "64 hexadecimal digits"),
            (issuer.to_owned(), "issuers[1]: expected either keys_url or keys_file"),
            (format!("{issuer}keys_url = \"ftp://x\""), "expected https://"),
            (format!("{issuer}keys_url = \"http://127.0.0.1.evil.com/\""), "expected https://"),
            (format!("{issuer}keys_file = \"x\"\nalgorithms = [\"HS256\"]"), "HS256"),
            ("session_lifetime = \"9d\"".into(), "session_lifetime: \"9d\": expected a time such as 8h"),
            (format!("{issuer}login = {{}}"), "missing field `client_id`"),
            (format!("{issuer}login = {{ client_id = \"\" }}"), "issuers[1]: login: client_id"),
            (format!("{issuer}login = {{ client_id = \"a\", scopes = [\"email\"] }}"), "openid among them"),
            (format!("{issuer}login = {{ client_id = \"a\", scopes = [\"openid x\"] }}"), "a list of words"),
            (
                "[[issuers]]\nname = \"a/b\"\nurl = \"https://i\"\nlogin = { client_id = \"a\" }".into(),
                "it is a part of addresses",
            ),
            (
                "[[issuers]]\nname = \"i\"\nurl = \"http://i\"\nlogin = { client_id = \"a\" }".into(),
                "expected https://... beside login",
            ),
            ("[[rules]]\nrights = []".into(), "rules[1]: expected one of key"),
            ("[[rules]]\nkey = \"a\"\nanyone = true\nrights = []".into(), "rules[1]: expected one of key"),
            ("[[rules]]\nkey = \"\"\nrights = []".into(), "rules[1]: an empty text"),
            ("[[rules]]\nkey = \"a\"\nrights = [\"root\"]".into(), "unknown right \"root\"; known: read"),
            ("[[rules]]\nkey = \"a\"\ngroups = [\"a b\"]\nrights = []".into(), "a b"),
            ("[[rules]]\nkey = \"a\"\npriorities = [\"now\"]\nrights = []".into(), "now"),
            (
                "[[rules]]\nkey = \"a\"\nrights = []\nlimits = { builds_per_second = -1 }".into(),
                "limits: builds_per_second: expected 0.001",
            ),
            (
                "[[rules]]\nkey = \"a\"\nrights = []\nlimits = { calls_at_once = 5 }".into(),
                "expected calls_per_second beside calls_at_once",
            ),
            ("[[rules]]\nkey = \"a\"\nrights = []\nlimits = { speed = 1 }".into(), "unknown field `speed`"),
            (
                "[[rules]]\nissuer = \"x\"\nclaims = { a = \"b\" }\nrights = []".into(),
                "not in the list issuers",
            ),
            (format!("{issuer}keys_file = \"x\"\n[[rules]]\nissuer = \"i\"\nrights = []"), "expected claims"),
            ("[[rules]]\nkey = \"a\"\nzone = \"x\"\nrights = []".into(), "zone \"x\" is not in the setting"),
            (
                "[[rules]]\nkey = \"a\"\nzone = \"main\"\ngroups = [\"web-pulls\"]\nrights = []".into(),
                "group web-pulls is in zone pulls",
            ),
            (
                "[[rules]]\nkey = \"a\"\ngroups = [\"web\", \"web-pulls\"]\nrights = []".into(),
                "make a rule for each zone",
            ),
            (
                "[[rules]]\nkey = \"a\"\nzone = \"main\"\ngroups = [\"*\"]\nrights = []".into(),
                "reaches all zones",
            ),
            ("[[rules]]\nkey = \"a\"\nclaims = { a = \"b\" }\nrights = []".into(), "expected issuer"),
        ];
        for (text, expected) in cases {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(expected), "{error}\nexpected {expected}");
        }
    }
}
