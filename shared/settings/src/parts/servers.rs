use std::path::PathBuf;

use credentials::{Credentials, PemFiles, Server};

use crate::Settings;

/// Stands for the name of the service in the path of a seed.
const SERVICE: &str = "{service}";
/// Name of the role of people who use the command line.
const OPERATOR: &str = "operator";

impl Settings {
    /// nats-server, with the credentials of a service.
    pub fn nats(&self, service: &str) -> Server {
        Server { url: self.nats_url.clone(), credentials: self.credentials(service) }
    }

    /// Redis, with the credentials of a service.
    pub fn redis(&self, service: &str) -> Server {
        Server { url: self.redis_url.clone(), credentials: self.credentials(service) }
    }

    /// The credentials of commands.
    pub fn operator_credentials(&self) -> Credentials {
        self.credentials(OPERATOR)
    }

    fn credentials(&self, service: &str) -> Credentials {
        let seed = self.seed_file.as_ref().map(|path| match path.to_str() {
            Some(text) => PathBuf::from(text.replace(SERVICE, service)),
            None => path.clone(),
        });
        let certificate = self.servers_certificate_file.clone().zip(self.servers_key_file.clone());
        Credentials { seed, tls: PemFiles { authorities: self.servers_ca_file.clone(), certificate } }
    }
}
