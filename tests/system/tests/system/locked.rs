//! Clients of a farm whose gateways have TLS and access rules.

use callers::ApiKey;
use farm::{Builder, Certified, Farm, Locks};
use model::DigestFunction;
use reapi::{
    execution::{
        action_cache_client::ActionCacheClient, capabilities_client::CapabilitiesClient,
        content_addressable_storage_client::ContentAddressableStorageClient,
        execution_client::ExecutionClient,
    },
    longrunning::operations_client::OperationsClient,
    stream::ByteStreamClient,
};
use tonic::{
    Request, Status,
    metadata::MetadataMap,
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

pub(crate) const SHA256: DigestFunction = DigestFunction::Sha256;

/// A farm with locks.
pub(crate) async fn start(locks: &Locks, builder: Builder) -> Farm {
    locks.on(builder).start().await
}

/// An HTTP client that trusts the authority of this file.
pub(crate) fn http_trusting(pem: &str) -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let authority = reqwest::Certificate::from_pem(pem.as_bytes()).unwrap();
    reqwest::Client::builder().tls_certs_only([authority]).build().unwrap()
}

pub(crate) fn http(locks: &Locks) -> reqwest::Client {
    http_trusting(&locks.authority.pem())
}

/// Connects to the gateway of a farm.
pub(crate) async fn grpc(locks: &Locks, farm: &Farm, credential: Option<&ApiKey>) -> Calls {
    Calls { channel: channel(locks, farm, None).await.unwrap(), headers: bearer(credential) }
}

pub(crate) async fn channel(
    locks: &Locks,
    farm: &Farm,
    client: Option<&Certified>,
) -> Result<Channel, tonic::transport::Error> {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(locks.authority.pem()));
    let tls = match client {
        None => tls,
        Some(client) => tls.identity(Identity::from_pem(&client.certificate, &client.key)),
    };
    let url = farm.grpc_url().replacen("grpcs://", "https://", 1);
    assert!(url.starts_with("https://"), "{url}");
    Endpoint::from_shared(url).unwrap().tls_config(tls)?.connect().await
}

/// Headers with a credential.
pub(crate) fn bearer(credential: Option<&ApiKey>) -> MetadataMap {
    let mut headers = MetadataMap::new();
    if let Some(key) = credential {
        headers.insert("authorization", format!("Bearer {}", key.reveal()).parse().unwrap());
    }
    headers
}

/// Calls with the same headers.
#[derive(Clone)]
pub(crate) struct Calls {
    pub(crate) channel: Channel,
    pub(crate) headers: MetadataMap,
}

/// Adds headers to calls.
#[derive(Clone)]
pub(crate) struct AddHeaders(MetadataMap);

impl Interceptor for AddHeaders {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let mut headers = self.0.clone().into_headers();
        headers.extend(std::mem::take(request.metadata_mut()).into_headers());
        *request.metadata_mut() = MetadataMap::from_headers(headers);
        Ok(request)
    }
}

type With = InterceptedService<Channel, AddHeaders>;

impl Calls {
    fn with(&self) -> With {
        InterceptedService::new(self.channel.clone(), AddHeaders(self.headers.clone()))
    }

    pub(crate) fn capabilities(&self) -> CapabilitiesClient<With> {
        CapabilitiesClient::new(self.with())
    }

    pub(crate) fn action_cache(&self) -> ActionCacheClient<With> {
        ActionCacheClient::new(self.with())
    }

    pub(crate) fn cas(&self) -> ContentAddressableStorageClient<With> {
        ContentAddressableStorageClient::new(self.with())
    }

    pub(crate) fn bytes(&self) -> ByteStreamClient<With> {
        ByteStreamClient::new(self.with())
    }

    pub(crate) fn execution(&self) -> ExecutionClient<With> {
        ExecutionClient::new(self.with())
    }

    pub(crate) fn operations(&self) -> OperationsClient<With> {
        OperationsClient::new(self.with())
    }

    /// The same connection with one more header.
    pub(crate) fn and(&self, name: &'static str, value: &str) -> Self {
        let mut headers = self.headers.clone();
        headers.append(name, value.parse().unwrap());
        Self { headers, ..self.clone() }
    }
}
