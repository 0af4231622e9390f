use std::path::PathBuf;

use model::PublicUrl;

use crate::Settings;

/// Who may call the servers of a process, and how they are encrypted.
#[derive(Debug, Clone, Default)]
pub struct AccessSettings {
    /// File with the access rules; none: every caller may do everything.
    pub file: Option<PathBuf>,
    /// File with the key of build tokens.
    pub build_token_key: Option<PathBuf>,
    /// File with the key that seals sessions of people.
    pub session_key: Option<PathBuf>,
    /// File with the key that proves which builds and actions were accepted.
    pub seal_key: Option<PathBuf>,
    /// Address at which browsers reach the pages.
    pub public_url: Option<PublicUrl>,
    pub tls: Option<TlsSettings>,
}

/// Files of servers with TLS, in PEM.
#[derive(Debug, Clone)]
pub struct TlsSettings {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub client_authorities: Option<PathBuf>,
}

/// How a process calls gateways.
#[derive(Debug, Clone, Default)]
pub struct GatewayLogin {
    pub token: Option<PathBuf>,
    pub authorities: Option<PathBuf>,
    /// The certificate and its private key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl Settings {
    pub(crate) fn access(&self) -> AccessSettings {
        let both = self.tls_certificate_file.clone().zip(self.tls_key_file.clone());
        let client_authorities = self.tls_client_ca_file.clone();
        AccessSettings {
            file: self.gateway_access_file.clone(),
            build_token_key: self.build_token_key_file.clone(),
            session_key: self.session_key_file.clone(),
            seal_key: self.seal_key_file.clone(),
            public_url: self.public_url.clone(),
            tls: both.map(|(certificate, key)| TlsSettings { certificate, key, client_authorities }),
        }
    }

    /// How this process calls gateways.
    pub fn gateway_login(&self) -> GatewayLogin {
        GatewayLogin {
            token: self.gateway_token_file.clone(),
            authorities: self.gateway_ca_file.clone(),
            certificate: self.gateway_certificate_file.clone().zip(self.gateway_key_file.clone()),
        }
    }
}
