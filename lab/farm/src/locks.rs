//! TLS and access rules of a locked farm, with its callers.

use std::{fs, path::PathBuf};

use callers::ApiKey;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::Builder;

/// An authority of certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its private key, in PEM.
#[derive(Debug, Clone)]
pub struct Certified {
    /// The certificate, in PEM.
    pub certificate: String,
    /// Its private key, in PEM.
    pub key: String,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// Makes a new authority.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("a test can make its keys");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(
            CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a test can make its keys"))
                .expect("a test can make its keys"),
        )
    }

    /// Its certificate in PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Makes a certificate with these names.
    pub fn certify(&self, names: &[&str]) -> Certified {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().expect("a test can make its keys");
        let certificate = CertificateParams::new(names)
            .expect("a test can make its keys")
            .signed_by(&key, &self.0)
            .expect("a test can make its keys");
        Certified { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

/// The credentials and files of a locked farm.
pub struct Locks {
    folder: tempfile::TempDir,
    /// Certifies the servers and clients.
    pub authority: Authority,
    /// Caller who may do everything.
    pub operator: ApiKey,
    /// May do what developers do in group `web`.
    pub web: ApiKey,
    /// The same as `web`, for another caller.
    pub web_too: ApiKey,
    /// May do the same in group `other`.
    pub other: ApiKey,
    /// May read in group `web`, and read caches.
    pub reader: ApiKey,
}

/// Name in the client certificate that may run actions in group `web`.
pub const CLIENT: &str = "client.example.com";

impl Default for Locks {
    fn default() -> Self {
        Self::new()
    }
}

impl Locks {
    /// New keys, certificates and rules.
    pub fn new() -> Self {
        let key = || ApiKey::generate().expect("a test can make its keys");
        let locks = Self {
            folder: tempfile::tempdir().expect("a test can make its keys"),
            authority: Authority::new(),
            operator: key(),
            web: key(),
            web_too: key(),
            other: key(),
            reader: key(),
        };
        fs::write(locks.path("ca.pem"), locks.authority.pem()).expect("a test can make its keys");
        locks.certify_server(&locks.authority);
        locks.write("operator.key", locks.operator.reveal());
        locks.write("web.key", locks.web.reveal());
        locks.write("secret", &"0123456789abcdef".repeat(4));
        locks.write_rules("");
        locks
    }

    /// The path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("a test can make its keys");
        path
    }

    /// Gives the servers a certificate of this authority.
    pub fn certify_server(&self, authority: &Authority) {
        let server = authority.certify(&["127.0.0.1", "localhost"]);
        self.write("server.key", &server.key);
        self.write("server.pem", &server.certificate);
    }

    /// Writes the rules, with `more` at their end, at once.
    pub fn write_rules(&self, more: &str) {
        self.write_rules_without("", more);
    }

    /// The same without the key of this name.
    pub fn write_rules_without(&self, left_out: &str, more: &str) {
        let keys = [
            ("operator", &self.operator),
            ("web", &self.web),
            ("web-too", &self.web_too),
            ("other", &self.other),
            ("reader", &self.reader),
        ];
        let keys = keys.into_iter().filter(|(name, _)| *name != left_out);
        let keys =
            keys.map(|(name, key)| format!("[[keys]]\nname = \"{name}\"\nsha256 = \"{}\"\n", key.hash()));
        let rule = |who: &str, group: &str, rights: &str| {
            format!("[[rules]]\n{who}\ngroups = [\"{group}\"]\nrights = {rights}\n")
        };
        let all = r#"["read", "submit", "cancel", "execute", "cache-read", "blob-write", "cache-write", "operate"]
priorities = ["emergency", "interactive", "automated", "batch"]"#;
        let developer = r#"["read", "submit", "execute", "cache-read", "blob-write"]"#;
        let rules = [
            rule("key = \"operator\"", "*", all),
            rule("key = \"web*\"", "web", developer),
            rule("key = \"other\"", "other", developer),
            rule("key = \"reader\"", "web", r#"["read", "cache-read"]"#),
            rule(&format!("certificate = \"{CLIENT}\""), "web", developer),
            more.to_owned(),
        ];
        let text: Vec<String> = keys.chain(rules).collect();
        let new = self.write("access.new", &text.join("\n"));
        fs::rename(new, self.path("access.toml")).expect("a test can make its keys");
    }

    /// Settings of services that have these locks, and call locked gateways.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        [
            ("FOREBAY_GATEWAY_ACCESS_FILE", "access.toml"),
            ("FOREBAY_TLS_CERTIFICATE_FILE", "server.pem"),
            ("FOREBAY_TLS_KEY_FILE", "server.key"),
            ("FOREBAY_TLS_CLIENT_CA_FILE", "ca.pem"),
            ("FOREBAY_GATEWAY_CA_FILE", "ca.pem"),
            ("FOREBAY_GATEWAY_TOKEN_FILE", "operator.key"),
            ("FOREBAY_BUILD_TOKEN_KEY_FILE", "secret"),
        ]
        .into_iter()
        .map(|(name, file)| (name, self.path(file).display().to_string()))
        .collect()
    }

    /// The same without TLS.
    pub fn env_without_tls(&self) -> Vec<(&'static str, String)> {
        let of_tls = |name: &str| name.contains("_TLS_") || name.contains("_CA_");
        self.env().into_iter().filter(|(name, _)| !of_tls(name)).collect()
    }

    /// A farm with these access rules, without TLS.
    pub fn without_tls(&self, builder: Builder) -> Builder {
        self.env_without_tls().into_iter().fold(builder, |builder, (name, value)| builder.env(name, value))
    }

    /// A farm with these locks.
    pub fn on(&self, builder: Builder) -> Builder {
        self.env().into_iter().fold(builder, |builder, (name, value)| builder.env(name, value))
    }
}
