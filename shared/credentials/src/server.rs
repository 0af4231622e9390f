//! Addresses of servers, and how a process proves who it is to them.

use std::path::PathBuf;

use model::Endpoints;

use crate::{BusUser, PemFiles, SeedFault, UserFault, UserKey};

/// How a process proves who it is to nats-server and Redis, and how it knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// File with the seed of its key, named after its user: `ROLE.NAME.seed`, or `ROLE.NAME.creds`, which has a JWT too.
    /// None: it has no key.
    pub seed: Option<PathBuf>,
    /// Files of TLS, in PEM.
    pub tls: PemFiles,
}

/// A server, or several of one cluster, and the credentials for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// URL, or several separated by commas.
    pub url: String,
    pub credentials: Credentials,
}

impl Server {
    /// A server that is called without a key.
    pub fn open(url: impl Into<String>) -> Self {
        Self { url: url.into(), credentials: Credentials::default() }
    }

    /// nats-server of a farm that `forebay up` runs, as an operator.
    pub fn nats_of(endpoints: &Endpoints) -> Self {
        Self { url: endpoints.nats.clone(), credentials: Credentials::of_operator(endpoints) }
    }

    /// Redis of a farm that `forebay up` runs, as an operator.
    pub fn redis_of(endpoints: &Endpoints) -> Self {
        Self { url: endpoints.redis.clone(), credentials: Credentials::of_operator(endpoints) }
    }

    /// The URL without a user and a password, for messages.
    pub fn shown(&self) -> String {
        let without = |url: &str| match (url.split_once("://"), url.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
            (_, _) => url.to_owned(),
        };
        self.url.split(',').map(without).collect::<Vec<_>>().join(",")
    }
}

impl From<&str> for Server {
    fn from(url: &str) -> Self {
        Self::open(url)
    }
}

impl From<&String> for Server {
    fn from(url: &String) -> Self {
        Self::open(url)
    }
}

impl From<&Self> for Server {
    fn from(server: &Self) -> Self {
        server.clone()
    }
}

impl Credentials {
    /// Those of an operator on the machine of the farm; none if it is open.
    pub fn of_operator(endpoints: &Endpoints) -> Self {
        let Some(files) = &endpoints.operator else { return Self::default() };
        let certificate = Some((PathBuf::from(&files.certificate), PathBuf::from(&files.key)));
        let tls = PemFiles { authorities: Some(PathBuf::from(&files.authorities)), certificate };
        Self { seed: Some(PathBuf::from(&files.seed)), tls }
    }

    /// The user of the seed; none without a seed.
    ///
    /// # Errors
    ///
    /// Fails if the name of the file is not that of a user.
    pub fn user(&self) -> Result<Option<BusUser>, UserFault> {
        self.seed.as_deref().map(BusUser::of_seed_file).transpose()
    }

    /// The key as it is in its file now; none without a file.
    ///
    /// # Errors
    ///
    /// Fails if the file does not exist or cannot be used.
    pub fn key(&self) -> Result<Option<UserKey>, SeedFault> {
        let Some(path) = &self.seed else { return Ok(None) };
        let missing = || SeedFault::File {
            what: "find",
            path: path.clone(),
            source: std::io::ErrorKind::NotFound.into(),
        };
        UserKey::read(path)?.map(Some).ok_or_else(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_urls_are_not_shown() {
        for (url, shown) in [
            ("nats://host:4222", "nats://host:4222"),
            ("nats://me:pass@word@host:1,nats://b:2", "nats://host:1,nats://b:2"),
            ("rediss://:secret@host", "rediss://host"),
            ("host:1", "host:1"),
        ] {
            assert_eq!(Server::open(url).shown(), shown);
        }
    }

    #[test]
    fn a_missing_seed_is_an_error() {
        let seed = Some(PathBuf::from("/nonexistent/gateway.1.seed"));
        let credentials = Credentials { seed, ..Credentials::default() };
        assert!(credentials.key().unwrap_err().to_string().contains("gateway.1.seed"));
        assert!(Credentials::default().key().unwrap().is_none());
    }
}
