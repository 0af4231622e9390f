//! `forebay up --secure`: keys, certificates and rules of a farm, so that only those who have a key use its servers.

mod files;

use std::{
    fs::{self, Permissions},
    net::IpAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use access::{
    Access, Authority, Change, Instance, Purpose, Role, SeedFolder, ServiceName, Slot, Who, nats_config,
    redis_acl,
};
use model::OperatorFiles;
use settings::Settings;

use crate::{error::UpError, folder::Folder, ports};

use files::{keep, replace};

/// What `--secure` made, in `secure` of the data folder.
#[derive(Debug, Clone)]
pub(crate) struct Secure {
    folder: PathBuf,
    access: Access,
    seeds: SeedFolder,
}

/// Roles of which one process runs. Commands are those of the operator, and `up` itself the supervisor.
const ONE_EACH: [Role; 14] = [
    Role::Enqueuer,
    Role::Dispatcher,
    Role::Governor,
    Role::Trainer,
    Role::Autoscaler,
    Role::Reaper,
    Role::Archive,
    Role::Scheduler,
    Role::Gateway,
    Role::Web,
    Role::Cas,
    Role::Operator,
    Role::Supervisor,
    Role::Monitor,
];

/// Name in the certificate of the farm's processes, which Redis and metrics ask for.
const CLIENT: &str = "forebay-process";
/// Rules of gateways: operators may do everything, processes of the farm what jobs and transfers need.
const RULES: &str = "\
# Made by `forebay up --secure`. docs/gateway-access.md describes the rules; changes apply within a second.
[[keys]]
name = \"operator\"
sha256 = \"OPERATOR\"

[[keys]]
name = \"farm\"
sha256 = \"FARM\"

[[rules]]
key = \"operator\"
groups = [\"*\"]
rights = [\"read\", \"submit\", \"cancel\", \"execute\", \"cache-read\", \"blob-write\", \"cache-write\", \"operate\"]

[[rules]]
key = \"farm\"
groups = [\"*\"]
rights = [\"execute\", \"cache-read\", \"blob-write\"]
";

/// File with the users of the farm.
const DESCRIPTION: &str = "access.toml";

impl Secure {
    /// File with the accounts and users, beside the configuration of nats-server.
    pub(crate) const USERS_OF_NATS: &str = "users.conf";
    /// File with the users, in the folder of Redis.
    pub(crate) const USERS_OF_REDIS: &str = "users.acl";

    /// The description of the users of a farm in this folder.
    pub(crate) fn description_in(folder: &Folder) -> PathBuf {
        folder.root().join("secure").join(DESCRIPTION)
    }

    /// Makes what is missing in the folder, and new certificates, for as many workers and executors.
    pub(crate) fn prepare(folder: &Folder, settings: &Settings, counts: PoolSizes) -> Result<Self, UpError> {
        let path = folder.root().join("secure");
        files::create_folder(&path)?;
        let seeds = SeedFolder::new(&path.join("seeds"));
        let mut secure = Self { folder: path, access: Access::default(), seeds };
        secure.describe(counts)?;
        secure.certify(settings)?;
        secure.make_keys()?;
        secure.close(folder.root())?;
        // Included by a configuration in the same folder.
        replace(&folder.root().join("nats").join(Self::USERS_OF_NATS), &nats_config(&secure.access))?;
        replace(&folder.root().join("redis").join(Self::USERS_OF_REDIS), &redis_acl(&secure.access))?;
        Ok(secure)
    }

    /// Folders with what builds of all tenants wrote.
    const OF_TENANTS: [&str; 5] = ["archive", "cas", "logs", "nats", "redis"];

    /// Takes from other users of the machine what they could read of keys and kept builds, and who is admitted.
    fn close(&self, data: &Path) -> Result<(), UpError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source: std::io::Error| UpError::Secure { path, source: Box::new(source) }
        };
        let set = |path: &Path, mode: u32| {
            fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed(path))
        };
        set(&self.folder, 0o700)?;
        for name in Self::OF_TENANTS {
            let path = data.join(name);
            fs::create_dir_all(&path).map_err(failed(&path))?;
            set(&path, 0o700)?;
        }
        for entry in fs::read_dir(&self.folder).map_err(failed(&self.folder))?.flatten() {
            let path = entry.path();
            if entry.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o077 != 0)
            {
                set(&path, 0o600)?;
            }
        }
        Ok(())
    }

    /// The description of users, with those that this farm needs. Others may have been added to it.
    fn describe(&mut self, counts: PoolSizes) -> Result<(), UpError> {
        let path = self.path(DESCRIPTION);
        let unusable =
            |source: Box<dyn std::error::Error + Send + Sync>| UpError::Secure { path: path.clone(), source };
        if let Some(text) = files::read(&path)? {
            self.access = Access::parse(&text).map_err(|error| unusable(Box::new(error)))?;
            if self.access.jwt().is_some() {
                let reason =
                    "its users have JWTs, which `forebay up --secure` does not use: remove the table `jwt`";
                return Err(unusable(reason.into()));
            }
        }
        for name in counts.users() {
            if self.access.services().contains_key(&name) {
                continue;
            }
            let changed = self.seeds.change(&self.access, &Change::Service(name));
            (self.access, _) = changed.map_err(|error| unusable(Box::new(error)))?;
            // One by one: each seed on the disk belongs to the description, also after a kill.
            replace(&path, &self.access.to_toml())?;
        }
        Ok(())
    }

    fn certify(&self, settings: &Settings) -> Result<(), UpError> {
        let key_path = self.path("ca.key");
        let failed = |source| UpError::Secure { path: key_path.clone(), source: Box::new(source) };
        let authority = match files::read(&key_path)? {
            Some(key) if self.path("ca.pem").exists() => Authority::of_key(&key).map_err(failed)?,
            Some(_) | None => {
                let (authority, files) = Authority::generate().map_err(failed)?;
                replace(&key_path, &files.key)?;
                replace(&self.path("ca.pem"), &files.certificate)?;
                authority
            }
        };
        let names = server_names(settings);
        for (name, names, purpose) in
            [("server", names, Purpose::Server), ("client", vec![CLIENT.to_owned()], Purpose::Client)]
        {
            let certified = authority.certify(&names, purpose).map_err(failed)?;
            // The key first: a process that reads in between keeps its earlier pair.
            replace(&self.path(&format!("{name}.key")), &certified.key)?;
            replace(&self.path(&format!("{name}.pem")), &certified.certificate)?;
        }
        Ok(())
    }

    /// API keys, the rules with their hashes, and the key of the tokens of builds.
    fn make_keys(&self) -> Result<(), UpError> {
        let hash = |name: &str| -> Result<String, UpError> {
            let path = self.path(name);
            let key = callers::ApiKey::generate();
            let key = key.map_err(|error| UpError::Secure { path: path.clone(), source: Box::new(error) })?;
            let text = keep(&path, || key.reveal().to_owned())?;
            let kept = callers::ApiKey::parse(text.trim());
            Ok(kept
                .ok_or_else(|| UpError::Secure { path, source: "it is not an API key".into() })?
                .hash()
                .to_string())
        };
        let (operator, farm) = (hash("operator.token")?, hash("farm.token")?);
        keep(&self.path("rules.toml"), || RULES.replace("OPERATOR", &operator).replace("FARM", &farm))?;
        let random = || format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        keep(&self.path("build-token.key"), random)?;
        keep(&self.path("session.key"), random)?;
        keep(&self.path("seal.key"), random)?;
        Ok(())
    }

    /// Sets what all processes of the farm share, and the key of this one. What the user has set stays.
    pub(crate) fn apply(&self, settings: &mut Settings) {
        let set = |setting: &mut Option<PathBuf>, name: &str| {
            setting.get_or_insert_with(|| self.path(name));
        };
        set(&mut settings.gateway_access_file, "rules.toml");
        set(&mut settings.build_token_key_file, "build-token.key");
        set(&mut settings.session_key_file, "session.key");
        set(&mut settings.seal_key_file, "seal.key");
        if settings.tls_certificate_file.is_none() {
            set(&mut settings.tls_certificate_file, "server.pem");
            set(&mut settings.tls_key_file, "server.key");
            set(&mut settings.tls_client_ca_file, "ca.pem");
            set(&mut settings.gateway_ca_file, "ca.pem");
        }
        set(&mut settings.gateway_token_file, "farm.token");
        settings.servers_ca_file = Some(self.path("ca.pem"));
        settings.servers_certificate_file = Some(self.path("client.pem"));
        settings.servers_key_file = Some(self.path("client.key"));
        settings.seed_file = Some(self.seed(&process(Role::Supervisor, 1)));
    }

    /// The key of a child process: `worker-2` is the second worker.
    pub(crate) fn seed_of(&self, child: &str, service: &str) -> Option<PathBuf> {
        let role = service.parse().ok()?;
        let number = child.rsplit_once('-').and_then(|(_, number)| number.parse().ok());
        Some(self.seed(&process(role, number.unwrap_or(1))))
    }

    /// What a command on this machine needs.
    pub(crate) fn operator(&self) -> OperatorFiles {
        let text = |path: PathBuf| path.display().to_string();
        OperatorFiles {
            seed: text(self.seed(&process(Role::Operator, 1))),
            authorities: text(self.path("ca.pem")),
            certificate: text(self.path("client.pem")),
            key: text(self.path("client.key")),
            token: text(self.path("operator.token")),
        }
    }

    fn seed(&self, service: &ServiceName) -> PathBuf {
        self.seeds.path(&Who::Service(service.clone()), Slot::Current)
    }

    /// The path of a file, for example `server.pem`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// The user of a process on this machine. The ids of workers and executors begin with its name.
fn process(role: Role, number: u32) -> ServiceName {
    ServiceName::new(role, Instance::of(role, number))
}

/// How many workers and executors may exist at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolSizes {
    pub(crate) workers: u32,
    pub(crate) executors: u32,
}

impl PoolSizes {
    fn users(self) -> impl Iterator<Item = ServiceName> {
        let several = |role: Role, count: u32| (1..=count.max(1)).map(move |number| process(role, number));
        let one_each = ONE_EACH.into_iter().map(|role| process(role, 1));
        one_each.chain(several(Role::Worker, self.workers)).chain(several(Role::Executor, self.executors))
    }
}

/// The names and addresses at which clients may reach the servers of this machine.
fn server_names(settings: &Settings) -> Vec<String> {
    let mut found: Vec<String> = ["127.0.0.1", "::1", "localhost"].map(str::to_owned).to_vec();
    found.extend(nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()));
    let listens = [&settings.http_listen, &settings.grpc_listen, &settings.web_listen, &settings.cas_listen];
    for listen in listens {
        let (host, _) = ports::split(listen);
        // All interfaces: the name of the machine is listed.
        let is_all = host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
        if !is_all && !host.is_empty() && found.iter().all(|known| known != host) {
            found.push(host.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_has_the_names_that_clients_use() {
        let settings = Settings {
            http_listen: "192.0.2.7:8080".into(),
            grpc_listen: "[2001:db8::1]:8980".into(),
            web_listen: "0.0.0.0:80".into(),
            ..Settings::default()
        };
        let names = server_names(&settings);
        for wanted in ["127.0.0.1", "localhost", "192.0.2.7", "2001:db8::1"] {
            assert!(names.iter().any(|name| name == wanted), "{names:?}");
        }
        assert!(!names.iter().any(|name| name == "0.0.0.0"));
    }

    #[test]
    fn each_process_has_a_user() {
        let users: Vec<String> =
            PoolSizes { workers: 2, executors: 0 }.users().map(|user| user.to_string()).collect();
        for user in ["enqueuer/enqueuer-1", "worker/worker-2", "executor/executor-1", "operator/operator-1"] {
            assert!(users.iter().any(|known| known == user), "{user}");
        }
        assert!(!users.iter().any(|known| known == "worker/worker-3"));
    }
}
