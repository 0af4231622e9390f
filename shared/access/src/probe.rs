//! Checks on running nats-servers that each tenant can do what the description says.

use bus::{Crossing, Probe, ProbeError};
use credentials::{Credentials, PemFiles, SeedFault, Server, UserKey};

use crate::{Access, SeedFolder, Slot, UserOf, Who, tenants::User};

/// A user of a tenant that cannot do what it should, or cannot be checked.
#[derive(Debug, thiserror::Error)]
pub enum Finding {
    #[error("user {user}: no file with its key in {folder}: it cannot be checked", folder = folder)]
    NoSeed { user: UserOf, folder: String },
    #[error("user {user}")]
    Seed {
        user: UserOf,
        #[source]
        source: SeedFault,
    },
    #[error("user {user} cannot connect to {url}")]
    Connect {
        user: UserOf,
        url: String,
        #[source]
        source: Box<bus::BusError>,
    },
    #[error("user {user} on {url}")]
    Denied {
        user: UserOf,
        url: String,
        #[source]
        source: Box<ProbeError>,
    },
}

/// Connects as each user of each tenant to each server, and checks with requests that change nothing that its builds would be
/// stored and that the builds of its groups can be read. Returns what fails.
///
/// After a change, nats-server may not connect the account of a tenant with that of the farm, without any message: requests
/// of the tenant find no receiver then.
pub async fn probe(access: &Access, seeds: &SeedFolder, urls: &[String], tls: &PemFiles) -> Vec<Finding> {
    let mut findings = Vec::new();
    for user in access.users() {
        let credentials = match credentials(access, &user, seeds, tls) {
            Ok(credentials) => credentials,
            Err(finding) => {
                findings.push(finding);
                continue;
            }
        };
        for url in urls {
            let server = Server { url: url.clone(), credentials: credentials.clone() };
            findings.extend(check(&user, &server).await.err());
        }
    }
    findings
}

/// The credentials of a key whose public part the description has.
fn credentials(
    access: &Access,
    user: &User<'_>,
    seeds: &SeedFolder,
    tls: &PemFiles,
) -> Result<Credentials, Finding> {
    let who = Who::User(user.name.clone());
    for slot in [Slot::Current, Slot::Next] {
        let path = access.key_file(seeds, &who, slot);
        let key = UserKey::read(&path);
        let key = key.map_err(|source| Finding::Seed { user: user.name.clone(), source })?;
        if key.is_some_and(|found| user.keys.iter().any(|key| key == found.seed.public())) {
            return Ok(Credentials { seed: Some(path), tls: tls.clone() });
        }
    }
    let folder = access.key_file(seeds, &who, Slot::Current).display().to_string();
    Err(Finding::NoSeed { user: user.name.clone(), folder })
}

async fn check(user: &User<'_>, server: &Server) -> Result<(), Finding> {
    let (name, url) = (|| user.name.clone(), server.shown());
    let probe = Probe::connect(server).await;
    let probe = probe.map_err(|source| Finding::Connect {
        user: name(),
        url: url.clone(),
        source: Box::new(source),
    })?;
    for crossing in &user.crossings {
        let checked = match crossing {
            Crossing::Request(request) => probe.may_publish(request).await,
            Crossing::LastEvent(group) => probe.may_read(group).await,
            // Services answer these calls, or nothing has to be sent yet.
            Crossing::Api(..) | Crossing::Live(_) | Crossing::Rejected(_) => Ok(()),
        };
        checked.map_err(|source| Finding::Denied {
            user: name(),
            url: url.clone(),
            source: Box::new(source),
        })?;
    }
    Ok(())
}
