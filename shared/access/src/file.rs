//! The description as a file in TOML.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    str::FromStr,
};

use credentials::PublicKey;
use model::{Group, Priority};
use serde::{Deserialize, Deserializer};

use crate::{
    Access, AccessError, Keys, NameError, Publisher, RedisHash, ServiceKey, ServiceName, Tenant, TenantName,
    UserName, Watcher, jwt::JwtEntry,
};

/// A file that is not a valid description.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The line itself is not shown: it may have a seed that does not belong there.
    #[error("line {line}, column {column}: {message}")]
    Syntax { line: usize, column: usize, message: String },
    #[error(
        "version {0} of the description is unknown: expected {VERSION}; a later version of Forebay wrote the file"
    )]
    Version(u32),
    #[error("{0} is described twice")]
    Twice(String),
    #[error(transparent)]
    Content(#[from] AccessError),
}

const VERSION: u32 = 1;

impl FileError {
    fn at(text: &str, error: &toml::de::Error) -> Self {
        let start = error.span().map_or(0, |span| span.start);
        let before = text.get(..start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()) + 1;
        Self::Syntax { line, column, message: error.message().trim().to_owned() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    jwt: Option<JwtEntry>,
    #[serde(default, rename = "service")]
    services: Vec<ServiceEntry>,
    #[serde(default, rename = "tenant")]
    tenants: Vec<TenantEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, try_from = "ServiceFields")]
struct ServiceEntry {
    name: ServiceName,
    keys: Keys<ServiceKey>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceFields {
    role: String,
    name: String,
    #[serde(deserialize_with = "parsed")]
    keys: Vec<PublicKey>,
    #[serde(default, deserialize_with = "parsed")]
    redis: Vec<RedisHash>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantEntry {
    #[serde(deserialize_with = "parsed_one")]
    name: TenantName,
    groups: BTreeSet<Group>,
    priorities: BTreeSet<Priority>,
    #[serde(default)]
    watches: BTreeSet<Group>,
    #[serde(default, rename = "publisher")]
    publishers: Vec<PublisherEntry>,
    #[serde(default, rename = "watcher")]
    watchers: Vec<WatcherEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublisherEntry {
    #[serde(deserialize_with = "parsed_one")]
    name: UserName,
    groups: Option<BTreeSet<Group>>,
    priorities: Option<BTreeSet<Priority>>,
    keys: UserKeys,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WatcherEntry {
    #[serde(deserialize_with = "parsed_one")]
    name: UserName,
    groups: Option<BTreeSet<Group>>,
    keys: UserKeys,
}

#[derive(Deserialize)]
#[serde(try_from = "Vec<String>")]
struct UserKeys(Keys<PublicKey>);

impl TryFrom<Vec<String>> for UserKeys {
    type Error = String;

    fn try_from(texts: Vec<String>) -> Result<Self, String> {
        let keys: Result<Vec<PublicKey>, _> = texts.iter().map(|text| text.parse()).collect();
        at_most_two(keys.map_err(|error| error.to_string())?).map(Self)
    }
}

impl TryFrom<ServiceFields> for ServiceEntry {
    type Error = String;

    fn try_from(fields: ServiceFields) -> Result<Self, String> {
        let name = format!("{}/{}", fields.role, fields.name);
        let name: ServiceName = name.parse().map_err(|error: NameError| error.to_string())?;
        if !fields.redis.is_empty() && fields.redis.len() != fields.keys.len() {
            let (hashes, keys) = (fields.redis.len(), fields.keys.len());
            return Err(format!(
                "{name} has {keys} keys and {hashes} hashes in `redis`: give one for each key"
            ));
        }
        let mut hashes = fields.redis.into_iter();
        let keys = fields.keys.into_iter().map(|public| ServiceKey { public, redis: hashes.next() });
        Ok(Self { name, keys: at_most_two(keys.collect())? })
    }
}

fn at_most_two<K>(keys: Vec<K>) -> Result<Keys<K>, String> {
    let count = keys.len();
    let mut keys = keys.into_iter();
    match (keys.next(), keys.next(), keys.next()) {
        (Some(current), next, None) => Ok(Keys { current, next }),
        (Some(_), _, Some(_)) => Err(format!("{count} keys: expected one, or two during a rotation")),
        (None, _, _) => Err("no key: expected one, or two during a rotation".to_owned()),
    }
}

fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: std::fmt::Display>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}

fn parsed_one<'de, D: Deserializer<'de>, T: FromStr<Err: std::fmt::Display>>(
    deserializer: D,
) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

impl Access {
    /// Reads a description from its text.
    ///
    /// # Errors
    ///
    /// Fails if the text is not valid TOML, has an unknown field, or contradicts itself.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        let File { version, jwt, services, tenants } =
            toml::from_str(text).map_err(|error| FileError::at(text, &error))?;
        if version != VERSION {
            return Err(FileError::Version(version));
        }
        let twice = |account| FileError::Twice(format!("account {account}"));
        let jwt = jwt.map(JwtEntry::into_jwt).transpose().map_err(twice)?;
        let mut access = Self { jwt, ..Self::default() };
        for ServiceEntry { name, keys } in services {
            let text = format!("service {name}");
            unique(access.services.insert(name, keys).is_none(), text)?;
        }
        for entry in tenants {
            let name = entry.name.clone();
            let text = format!("tenant {name}");
            unique(access.tenants.insert(name, entry.into_tenant()?).is_none(), text)?;
        }
        Ok(access.checked()?)
    }

    /// The description as text that [`Access::parse`] reads.
    pub fn to_toml(&self) -> String {
        let mut text = format!("{HEAD}version = {VERSION}\n");
        if let Some(jwt) = &self.jwt {
            jwt.write(&mut text);
        }
        for (name, keys) in &self.services {
            let public = keys.iter().map(|key| key.public.as_str());
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "\n[[service]]\nrole = \"{}\"\nname = \"{}\"\nkeys = {}\n",
                name.role(),
                name.instance(),
                list(public)
            );
            let hashes: Vec<String> =
                keys.iter().filter_map(|key| key.redis.as_ref().map(ToString::to_string)).collect();
            if !hashes.is_empty() {
                let _ = writeln!(text, "redis = {}", list(hashes.iter().map(String::as_str)));
            }
        }
        self.tenants.iter().for_each(|(name, tenant)| tenant.write(name, &mut text));
        text
    }
}

const HEAD: &str = "\
# Users of the bus and of the index of a Forebay farm. Seeds are not here: each is in a file of its own.
# `forebay access` changes this file, without comments of others; after a change by hand, run `forebay access apply`.
";

fn unique(is_new: bool, what: String) -> Result<(), FileError> {
    if is_new { Ok(()) } else { Err(FileError::Twice(what)) }
}

impl TenantEntry {
    fn into_tenant(self) -> Result<Tenant, FileError> {
        let (mut publishers, mut watchers) = (BTreeMap::new(), BTreeMap::new());
        for PublisherEntry { name, groups, priorities, keys: UserKeys(keys) } in self.publishers {
            let text = format!("user {}/{name}", self.name);
            let publisher = Publisher { groups, priorities, keys };
            unique(publishers.insert(name, publisher).is_none(), text)?;
        }
        for WatcherEntry { name, groups, keys: UserKeys(keys) } in self.watchers {
            let text = format!("user {}/{name}", self.name);
            unique(watchers.insert(name, Watcher { groups, keys }).is_none(), text)?;
        }
        let Self { groups, priorities, watches, .. } = self;
        Ok(Tenant { groups, priorities, watches, publishers, watchers })
    }
}

impl Tenant {
    fn write(&self, name: &TenantName, text: &mut String) {
        let groups = |groups: &BTreeSet<Group>| list(groups.iter().map(Group::as_str));
        let priorities = |some: &BTreeSet<Priority>| list(some.iter().map(|priority| priority.as_str()));
        let keys = |keys: &Keys<PublicKey>| list(keys.iter().map(PublicKey::as_str));
        let _ = write!(text, "\n[[tenant]]\nname = \"{name}\"\ngroups = {}\n", groups(&self.groups));
        let _ = writeln!(text, "priorities = {}", priorities(&self.priorities));
        if !self.watches.is_empty() {
            let _ = writeln!(text, "watches = {}", groups(&self.watches));
        }
        for (user, publisher) in &self.publishers {
            let _ = write!(text, "\n[[tenant.publisher]]\nname = \"{user}\"\n");
            if let Some(part) = &publisher.groups {
                let _ = writeln!(text, "groups = {}", groups(part));
            }
            if let Some(part) = &publisher.priorities {
                let _ = writeln!(text, "priorities = {}", priorities(part));
            }
            let _ = writeln!(text, "keys = {}", keys(&publisher.keys));
        }
        for (user, watcher) in &self.watchers {
            let _ = write!(text, "\n[[tenant.watcher]]\nname = \"{user}\"\n");
            if let Some(part) = &watcher.groups {
                let _ = writeln!(text, "groups = {}", groups(part));
            }
            let _ = writeln!(text, "keys = {}", keys(&watcher.keys));
        }
    }
}

/// A list of texts without characters that TOML escapes.
fn list<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = items.map(|item| format!("\"{item}\"")).collect();
    format!("[{}]", quoted.join(", "))
}
