//! Checks where a repository is, and fixes what git may connect to.

use std::path::Path;

use download::{Reach, ReachError};

use crate::{
    relay::Relay,
    sources::{Refusal, Sources},
};

use super::{
    address::{Address, Endpoint},
    linked,
};

/// A repository that may be fetched from.
pub(crate) struct Remote {
    /// The URL or resolved path that git fetches from.
    pub(super) url: String,
    /// The protocols that git may use, as in `GIT_ALLOW_PROTOCOL`.
    pub(super) protocols: &'static str,
    /// Options of ssh that make it connect to the address that was checked; may be empty.
    pub(super) ssh_options: String,
    /// What git connects through over HTTP.
    pub(super) relay: Option<Relay>,
}

/// Checks a request for `revision` of the repository at `url`.
pub(crate) async fn reach(url: &str, revision: &str, sources: &Sources) -> Result<Remote, Refusal> {
    // Git would read these as options, or as references to write.
    if revision.starts_with(['-', '+', '^']) || revision.contains([':', '*']) {
        return Err(Refusal(format!("the revision {revision:?} is not a commit, tag or branch")));
    }
    let refused = |why: String| Refusal(format!("cannot fetch {url}: {why}"));
    let address = Address::parse(url).map_err(refused)?;
    if let Address::Local(path) = &address {
        return local(path, sources);
    }
    let ssh_options = match &address {
        Address::Ssh(endpoint) => ssh_options(endpoint, &sources.reach).await.map_err(refused)?,
        Address::Http(Endpoint { host, port }) => match sources.reach.resolve(host, *port).await {
            Err(error @ ReachError::Closed { .. }) => return Err(refused(error.to_string())),
            // A proxy or a mirror of `git_config_file` may know the name.
            Err(ReachError::Unresolved { .. }) | Ok(_) => String::new(),
        },
        Address::Local(_) => String::new(),
    };
    let relay = Relay::start(sources.reach.clone()).await;
    let relay = relay.map_err(|error| refused(format!("no connection can be made for git: {error}")))?;
    // The operator's mirrors may be in the folders that builds may read.
    let protocols = if sources.has_folders() { "https:http:ssh:file" } else { "https:http:ssh" };
    Ok(Remote { url: url.to_owned(), protocols, ssh_options, relay: Some(relay) })
}

fn local(path: &Path, sources: &Sources) -> Result<Remote, Refusal> {
    let resolved = linked::resolve(path, sources)?;
    let Some(url) = resolved.to_str().map(ToOwned::to_owned) else {
        return Err(Refusal(format!("the path {} is not UTF-8", resolved.display())));
    };
    Ok(Remote { url, protocols: "file", ssh_options: String::new(), relay: None })
}

/// Makes ssh connect to an address that is open, and look for the key of the host that was asked for.
async fn ssh_options(endpoint: &Endpoint, reach: &Reach) -> Result<String, String> {
    let Endpoint { host, port } = endpoint;
    // The configuration of ssh may say how to reach a host that the operator named.
    if reach.is_named(host, *port) {
        return Ok(String::new());
    }
    let found = reach.resolve(host, *port).await.map_err(|error| telemetry::error_chain(&error))?;
    let Some(address) = found.first().map(std::net::SocketAddr::ip) else { return Ok(String::new()) };
    let alias = if *port == 22 { host.clone() } else { format!("[{host}]:{port}") };
    Ok(format!("-o 'HostName={address}' -o 'HostKeyAlias={alias}'"))
}
