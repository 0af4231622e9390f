//! Servers that admit only those who have a key, for running all tests on a secured farm.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use access::{
    Access, Authority, Change, Instance, Purpose, Role, SeedFolder, ServiceName, nats_config, redis_acl,
};

/// Set to run all tests on secured servers: services have keys, and use TLS. Tests themselves have a user who may do everything.
const VARIABLE: &str = "FOREBAY_TEST_SECURE";

/// Keys and certificates of a test.
#[derive(Debug)]
pub(crate) struct Secured {
    folder: PathBuf,
}

/// Name and password of the tests.
pub(crate) const TEST_USER: &str = "test";

impl Secured {
    /// Makes keys and certificates in `folder`, if the environment asks for secured servers.
    pub(crate) fn if_asked(folder: &Path) -> Option<Self> {
        std::env::var_os(VARIABLE).filter(|value| !value.is_empty())?;
        Some(Self::make(folder))
    }

    fn make(folder: &Path) -> Self {
        let folder = folder.join("secure");
        fs::create_dir_all(folder.join("seeds")).expect("the folder of keys");
        let seeds = SeedFolder::new(&folder.join("seeds"));
        let add = |access: Access, role: Role| {
            let change = Change::Service(ServiceName::new(role, Instance::of(role, 1)));
            seeds.change(&access, &change).expect("a key").0
        };
        let access = Role::ALL.into_iter().fold(Access::default(), add);
        let secured = Self { folder };
        let (authority, own) = Authority::generate().expect("an authority");
        secured.write("ca.pem", &own.certificate);
        let local = ["127.0.0.1", "localhost"].map(str::to_owned);
        let server = authority.certify(&local, Purpose::Server).expect("a certificate");
        secured.write("server.pem", &server.certificate);
        secured.write("server.key", &server.key);
        let client = authority.certify(&[], Purpose::Client).expect("a certificate");
        secured.write("client.pem", &client.certificate);
        secured.write("client.key", &client.key);
        // Tests connect without TLS and may do everything, as attackers and observers.
        let all = format!(
            "{{ user: {TEST_USER}, password: {TEST_USER}, permissions {{ publish: \">\", subscribe: \">\" }} }}"
        );
        let config = nats_config(&access);
        let farm = config.find("\"FARM\"").expect("the account of the farm");
        let (before, after) = config.split_at(farm);
        secured.write(
            "users.conf",
            &format!("{before}{}", after.replacen("users [", &format!("users [\n{all}"), 1)),
        );
        let acl = redis_acl(&access);
        secured.write("users.acl", &format!("{acl}user {TEST_USER} on >{TEST_USER} ~* &* +@all\n"));
        secured
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a file of keys");
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(self.path(name), private).expect("a private file");
    }

    /// The path of a file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Lines of the configuration of nats-server. `folder` is that of the configuration.
    pub(crate) fn nats_lines(&self, folder: &Path) -> String {
        // A configuration includes files of its own folder.
        fs::copy(self.path("users.conf"), folder.join("users.conf")).expect("the users of nats-server");
        let path = |name: &str| self.path(name).display().to_string();
        format!(
            "tls {{ cert_file: \"{}\", key_file: \"{}\", min_version: \"1.3\" }}\nallow_non_tls: true\ninclude users.conf\n",
            path("server.pem"),
            path("server.key")
        )
    }

    /// Options of Redis, which listens with TLS on `port`.
    pub(crate) fn redis_args(&self, port: u16) -> Vec<String> {
        let path = |name: &str| self.path(name).display().to_string();
        let args = [
            ("--tls-port", port.to_string()),
            ("--tls-auth-clients", "yes".to_owned()),
            ("--tls-cert-file", path("server.pem")),
            ("--tls-key-file", path("server.key")),
            ("--tls-ca-cert-file", path("ca.pem")),
            ("--aclfile", path("users.acl")),
        ];
        args.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect()
    }

    /// Settings by which services and commands prove who they are.
    pub(crate) fn env(&self) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("FOREBAY_SEED_FILE", self.folder.join("seeds/{service}.{service}-1.seed")),
            ("FOREBAY_SERVERS_CA_FILE", self.path("ca.pem")),
            ("FOREBAY_SERVERS_CERTIFICATE_FILE", self.path("client.pem")),
            ("FOREBAY_SERVERS_KEY_FILE", self.path("client.key")),
        ]
    }
}
