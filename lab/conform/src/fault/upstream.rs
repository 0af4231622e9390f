//! The correct server behind the proxy.

use std::collections::HashMap;

use futures::stream::BoxStream;
use parking_lot::Mutex;
use prost::Message;
use reapi::{
    asset::{fetch_client::FetchClient, push_client::PushClient},
    bytestream::byte_stream_client::ByteStreamClient,
    execution::{
        ActionResult, BatchReadBlobsRequest, Digest, action_cache_client::ActionCacheClient,
        capabilities_client::CapabilitiesClient,
        content_addressable_storage_client::ContentAddressableStorageClient,
        execution_client::ExecutionClient,
    },
    logstream::log_stream_service_client::LogStreamServiceClient,
    longrunning::operations_client::OperationsClient,
};
use tonic::{Extensions, Request, Response, Status, Streaming, transport::Channel};

use super::{Fault, MESSAGE_MAX};

/// The correct server and the fault to apply.
#[derive(Debug)]
pub(super) struct Upstream {
    channel: Channel,
    pub(super) fault: Fault,
    /// Content that was accepted under a wrong hash.
    pub(super) forged: Mutex<HashMap<String, Vec<u8>>>,
    /// Results that should not have been cached, by the hash of the action.
    pub(super) cached: Mutex<HashMap<String, ActionResult>>,
}

/// A stream of answers to one request.
pub(super) type Answers<T> = BoxStream<'static, Result<T, Status>>;

macro_rules! clients {
    ($($name:ident: $client:ident),+ $(,)?) => {
        $(pub(super) fn $name(&self) -> $client<Channel> {
            $client::new(self.channel.clone())
                .max_decoding_message_size(MESSAGE_MAX)
                .max_encoding_message_size(MESSAGE_MAX)
        })+
    };
}

impl Upstream {
    pub(super) fn new(channel: Channel, fault: Fault) -> Self {
        Self { channel, fault, forged: Mutex::default(), cached: Mutex::default() }
    }

    clients! {
        cas: ContentAddressableStorageClient,
        byte_stream: ByteStreamClient,
        action_cache: ActionCacheClient,
        execution: ExecutionClient,
        operations: OperationsClient,
        capabilities: CapabilitiesClient,
        log_streams: LogStreamServiceClient,
        fetch: FetchClient,
        push: PushClient,
    }

    pub(super) fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// Reads a message from the store; `None` if it is absent.
    pub(super) async fn message<M: Message + Default>(
        &self,
        instance: &str,
        digest_function: i32,
        digest: Option<&Digest>,
    ) -> Option<M> {
        let request = BatchReadBlobsRequest {
            instance_name: instance.to_owned(),
            digests: vec![digest?.clone()],
            acceptable_compressors: Vec::new(),
            digest_function,
        };
        let answer = self.cas().batch_read_blobs(request).await.ok()?.into_inner();
        M::decode(&*answer.responses.into_iter().next()?.data).ok()
    }
}

/// Returns the request to forward, with the client's headers.
pub(super) fn onward<T>(request: Request<T>) -> Request<T> {
    let (metadata, _, message) = request.into_parts();
    Request::from_parts(metadata, Extensions::default(), message)
}

/// Returns the stream to answer the client with.
pub(super) fn back<T: Send + 'static>(answer: Response<Streaming<T>>) -> Response<Answers<T>> {
    answer.map(futures::StreamExt::boxed)
}
