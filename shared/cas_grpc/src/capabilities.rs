//! Capabilities of the server.

use std::sync::Arc;

use policy::InstanceRule;
use reapi::{
    digest,
    execution::{
        ActionCacheUpdateCapabilities, CacheCapabilities, ExecutionCapabilities, FastCdc2020Params,
        GetCapabilitiesRequest, PriorityCapabilities, ServerCapabilities, capabilities_server::Capabilities,
        compressor, digest_function, priority_capabilities::PriorityRange, symlink_absolute_path_strategy,
    },
    metadata::STORE_ID,
    semver::SemVer,
};
use tonic::{Request, Response, Status};

use crate::api::{BlobApi, Shared};

/// The most urgent priority that clients can set.
pub const PRIORITY_MIN: i32 = -1_000_000;
/// The least urgent priority that clients can set.
pub const PRIORITY_MAX: i32 = 1_000_000;

/// Properties of files and directories that are supported for inputs and outputs.
pub const NODE_PROPERTIES: [&str; 2] = ["mtime", "unix_mode"];

/// The oldest supported version: major and minor.
pub const API_LOW: (i32, i32) = (2, 0);
/// The newest supported version: major and minor.
pub const API_HIGH: (i32, i32) = (2, 11);

/// Builds the capabilities for clients of an instance.
pub fn capabilities(api: &BlobApi, instance: &InstanceRule) -> ServerCapabilities {
    let execution = ExecutionCapabilities {
        digest_function: digest_function::Value::Sha256.into(),
        exec_enabled: true,
        execution_priority_capabilities: Some(priorities()),
        supported_node_properties: NODE_PROPERTIES.map(str::to_owned).to_vec(),
        digest_functions: digest::values(),
    };
    ServerCapabilities {
        cache_capabilities: Some(cache_capabilities(api, instance)),
        execution_capabilities: api.executes.then_some(execution),
        deprecated_api_version: None,
        low_api_version: Some(version(API_LOW)),
        high_api_version: Some(version(API_HIGH)),
    }
}

fn cache_capabilities(api: &BlobApi, instance: &InstanceRule) -> CacheCapabilities {
    let zstd = vec![compressor::Value::Zstd.into()];
    CacheCapabilities {
        digest_functions: digest::values(),
        action_cache_update_capabilities: Some(ActionCacheUpdateCapabilities {
            update_enabled: instance.writable,
        }),
        cache_priority_capabilities: Some(priorities()),
        max_batch_total_size_bytes: i64::try_from(api.limits.batch_bytes_max).unwrap_or(i64::MAX),
        symlink_absolute_path_strategy: symlink_absolute_path_strategy::Value::Disallowed.into(),
        supported_compressors: zstd.clone(),
        supported_batch_update_compressors: zstd,
        max_cas_blob_size_bytes: i64::try_from(api.cas.config().blob_bytes_max).unwrap_or(i64::MAX),
        split_blob_support: true,
        splice_blob_support: true,
        fast_cdc_2020_params: Some(FastCdc2020Params {
            avg_chunk_size_bytes: cas::FAST_CDC_AVERAGE_BYTES,
            seed: cas::FAST_CDC_SEED,
        }),
        rep_max_cdc_params: None,
    }
}

fn priorities() -> PriorityCapabilities {
    let range = PriorityRange { min_priority: PRIORITY_MIN, max_priority: PRIORITY_MAX };
    PriorityCapabilities { priorities: vec![range] }
}

fn version((major, minor): (i32, i32)) -> SemVer {
    SemVer { major, minor, patch: 0, prerelease: String::new() }
}

pub(crate) struct CapabilitiesService(pub(crate) Arc<Shared>);

#[tonic::async_trait]
impl Capabilities for CapabilitiesService {
    async fn get_capabilities(
        &self,
        request: Request<GetCapabilitiesRequest>,
    ) -> Result<Response<ServerCapabilities>, Status> {
        let instance = self.0.instance(&request.get_ref().instance_name)?;
        let mut response = Response::new(capabilities(&self.0.api, instance));
        if let Some(id) = self.0.store_id().await? {
            response.metadata_mut().insert(STORE_ID, id);
        }
        Ok(response)
    }
}
