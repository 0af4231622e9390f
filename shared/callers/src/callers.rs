//! The callers that a file of access rules knows.

use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use audit::Audit;
use disk::Changing;
use listener::Usage;
use model::AuditProof;
use policy::{
    access::{Proof, Reach, Right, Rights},
    limits::CallerLimits,
    zones::{ZoneReach, Zones},
};
use quick_cache::sync::Cache;

use crate::{
    build_token::BuildTokens,
    caller::Caller,
    credential::{Credential, Offered},
    file::{AccessFile, AccessFileError, KeyEntry},
    issuer::claimed_issuer,
    key::KeyHash,
    limits::Uses,
    place::Place,
    refusal::Refusal,
};

/// Maximum number of verified credentials that are remembered.
const REMEMBERED: usize = 10_000;

/// Finds out who calls. Cheap to clone.
#[derive(Clone)]
pub struct Callers {
    /// None: there are no access rules.
    known: Option<Arc<Known>>,
    audit: Audit,
    uses: Uses,
}

struct Known {
    path: PathBuf,
    builds: Option<BuildTokens>,
    zones: Zones,
    access: Changing<Arc<Access>>,
}

struct Access {
    file: AccessFile,
    builds: Option<BuildTokens>,
    zones: Zones,
    /// Callers by the hash of their credential, and when it expires.
    verified: Cache<KeyHash, (Arc<Caller>, Option<SystemTime>)>,
}

impl Callers {
    /// The callers of a farm without access rules: each may do everything.
    pub fn anyone() -> Self {
        Self { known: None, audit: Audit::off(), uses: Uses::default() }
    }

    /// Reads a file of access rules. Changes of the file apply within a second. With `builds`, the tokens of builds are accepted.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be used.
    pub fn of_file(path: &Path, builds: Option<BuildTokens>, zones: Zones) -> Result<Self, AccessFileError> {
        let access = Changing::new(vec![path.to_owned()], || {
            let file = AccessFile::read(path, &zones)?;
            Ok(Arc::new(Access::new(file, builds.clone(), zones.clone())))
        })?;
        let known = Known { path: path.to_owned(), builds, zones, access };
        Ok(Self { known: Some(Arc::new(known)), audit: Audit::off(), uses: Uses::default() })
    }

    /// The same callers; what they do, and what they are refused, is recorded for operators.
    #[must_use]
    pub fn with_audit(self, audit: Audit) -> Self {
        Self { audit, ..self }
    }

    /// A call from an address: its route or method, and its path if that says more.
    pub fn place(&self, call: String, path: Option<String>, address: Option<IpAddr>) -> Arc<Place> {
        Place::new(self.audit.clone(), call, path, address)
    }

    /// Checks the text of access rules that a file will contain, and returns its API keys.
    ///
    /// # Errors
    ///
    /// Fails if gateways could not use it.
    pub fn check_rules(path: &Path, text: &str, zones: &Zones) -> Result<Vec<KeyEntry>, AccessFileError> {
        let file = AccessFile::parse(&path.display().to_string(), text, zones)?;
        Ok(file.keys.into_values().collect())
    }

    /// Whether callers must prove who they are.
    pub fn have_rules(&self) -> bool {
        self.known.is_some()
    }

    /// The caller of a call on a connection. It is recorded for operators that the caller was let in.
    ///
    /// # Errors
    ///
    /// Fails if its credentials are missing or not accepted, or if it makes too many calls.
    pub async fn admit(
        &self,
        offered: Offered<'_>,
        place: &Arc<Place>,
        connection: Option<&Usage>,
    ) -> Result<Arc<Caller>, Refusal> {
        let identity = self.identify(offered).await?;
        let limits = identity.rights.limits;
        let usage = (!limits.is_none()).then(|| self.uses.of(&identity.name, place.address(), limits));
        let caller = Caller { place: Some(Arc::clone(place)), usage, ..(*identity).clone() };
        if let Some(usage) = &caller.usage {
            usage.call(connection).map_err(|exceeded| caller.limited(exceeded))?;
        }
        if caller.is_ruled {
            place.granted(&caller.name, caller.proof);
        }
        Ok(Arc::new(caller))
    }

    /// The caller with some credentials.
    ///
    /// # Errors
    ///
    /// Fails if its credentials are missing or not accepted.
    pub async fn identify(&self, offered: Offered<'_>) -> Result<Arc<Caller>, Refusal> {
        let Some(known) = &self.known else { return Ok(Caller::anyone()) };
        known.current().identify(offered).await
    }
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.known.as_ref().map(|known| known.path.as_path());
        f.debug_tuple("Callers").field(&path).finish()
    }
}

impl Known {
    /// The rules now. A file that cannot be used changes nothing, and is reported once.
    fn current(&self) -> Arc<Access> {
        self.access.current(|earlier| match AccessFile::read(&self.path, &self.zones) {
            Ok(mut file) => {
                for issuer in &mut file.issuers {
                    earlier.file.issuers.iter().for_each(|earlier| issuer.take_over(earlier));
                }
                tracing::info!(path = %self.path.display(), "the access rules have changed");
                Some(Arc::new(Access::new(file, self.builds.clone(), self.zones.clone())))
            }
            Err(error) => {
                let error = telemetry::error_chain(&error);
                tracing::error!(error, "cannot use the changed access rules: the earlier ones apply");
                None
            }
        })
    }
}

impl Access {
    fn new(file: AccessFile, builds: Option<BuildTokens>, zones: Zones) -> Self {
        Self { file, builds, zones, verified: Cache::new(REMEMBERED) }
    }

    async fn identify(&self, offered: Offered<'_>) -> Result<Arc<Caller>, Refusal> {
        let Some(credential) = offered.credential()? else {
            return self.without_credential(offered.certificate);
        };
        if let Credential::Build(token) = &credential {
            return self.of_build(token);
        }
        let hash = KeyHash::of(credential.secret());
        if let Some((caller, expires)) = self.verified.get(&hash)
            && expires.is_none_or(|at| SystemTime::now() < at)
        {
            return Ok(caller);
        }
        let (name, proof, expires) = self.verify(&credential, hash).await?;
        let caller = self.caller(&name, &proof)?;
        self.verified.insert(hash, (Arc::clone(&caller), expires));
        Ok(caller)
    }

    /// The caller with the token of a build: it runs actions in the group of the build while the build may run.
    fn of_build(&self, token: &str) -> Result<Arc<Caller>, Refusal> {
        let tokens = self.builds.as_ref();
        let tokens =
            tokens.ok_or_else(|| Refusal::invalid("a token of a build, which this gateway cannot verify"))?;
        let verified = tokens.verify(token);
        let (build, expires) = verified.ok_or_else(|| Refusal::invalid("a forged token of a build"))?;
        if expires <= SystemTime::now() {
            return Err(Refusal::invalid(format!("the token of build {build} has expired")));
        }
        let rights = [Right::Execute, Right::CacheRead, Right::BlobWrite].into();
        let groups = Reach::Listed([build.group.clone()].into());
        let zone = ZoneReach::Only(self.zones.of_group(&build.group).unwrap_or_default());
        let limits = CallerLimits::default();
        let rights = Rights { rights, groups, priorities: [].into(), zone, limits };
        Ok(Caller::ruled(format!("build:{build}"), AuditProof::Build, rights))
    }

    fn without_credential(&self, certificate: &[String]) -> Result<Arc<Caller>, Refusal> {
        if let Some(first) = certificate.first() {
            let proof = Proof::Certificate { names: certificate.to_vec() };
            return self.caller(&format!("certificate:{first}"), &proof);
        }
        self.caller("", &Proof::Nothing).map_err(|_| Refusal::Missing)
    }

    async fn verify(
        &self,
        credential: &Credential,
        hash: KeyHash,
    ) -> Result<(String, Proof, Option<SystemTime>), Refusal> {
        match credential {
            Credential::Key(_) => {
                let key = self.file.keys.get(&hash);
                let key = key.ok_or_else(|| Refusal::invalid("an API key that is not listed"))?;
                if key.expires.is_some_and(|at| at <= SystemTime::now()) {
                    return Err(Refusal::invalid(format!("the API key {} has expired", key.name)));
                }
                let name = key.name.clone();
                Ok((format!("key:{name}"), Proof::Key { name }, key.expires))
            }
            Credential::Build(_) => Err(Refusal::invalid("a token of a build is not a token of an issuer")),
            Credential::Token(token) => {
                let claimed =
                    claimed_issuer(token).ok_or_else(|| Refusal::invalid("the token has no issuer"))?;
                let issuer = self.file.issuers.iter().find(|issuer| issuer.url == claimed);
                let issuer =
                    issuer.ok_or_else(|| Refusal::invalid("a token of an issuer that is not listed"))?;
                let verified = issuer.verify(token).await?;
                let name = format!("{}:{}", issuer.name, verified.subject);
                let proof = Proof::Token { issuer: issuer.name.clone(), claims: verified.claims };
                Ok((name, proof, Some(verified.expires)))
            }
        }
    }

    fn caller(&self, name: &str, proof: &Proof) -> Result<Arc<Caller>, Refusal> {
        let rights = self.file.rules.rights(proof);
        let rights = rights.ok_or_else(|| Refusal::invalid(format!("no access rule is for {name:?}")))?;
        // Names of subjects have any length and characters; builds and logs show them.
        let name = name.chars().filter(|at| !at.is_control()).take(200).collect();
        let how = match proof {
            Proof::Key { .. } => AuditProof::Key,
            Proof::Token { .. } => AuditProof::Token,
            Proof::Certificate { .. } => AuditProof::Certificate,
            Proof::Nothing => AuditProof::Nothing,
        };
        Ok(Caller::ruled(name, how, rights.clone()))
    }
}

#[cfg(test)]
mod tests;
