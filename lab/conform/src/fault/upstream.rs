//! The correct server behind the proxy.

use std::collections::HashMap;

use futures::stream::BoxStream;
use model::DigestFunction;
use parking_lot::Mutex;
use prost::Message;
use reapi::execution::{ActionResult, BatchReadBlobsRequest, Digest};
use tonic::{Extensions, Request, Response, Status, Streaming, transport::Channel};

use super::Fault;
use crate::{client::Client, watched::Watched};

/// The correct server and the fault to apply.
pub(super) struct Upstream {
    pub(super) client: Client,
    pub(super) fault: Fault,
    /// Content that was accepted under a wrong hash.
    pub(super) forged: Mutex<HashMap<String, Vec<u8>>>,
    /// Results that should not have been cached, by the hash of the action.
    pub(super) cached: Mutex<HashMap<String, ActionResult>>,
}

/// A stream of answers to one request.
pub(super) type Answers<T> = BoxStream<'static, Result<T, Status>>;

impl Upstream {
    pub(super) fn new(channel: Channel, fault: Fault) -> Self {
        let client = Client::new(Watched::new(channel), "", DigestFunction::Sha256);
        Self { client, fault, forged: Mutex::default(), cached: Mutex::default() }
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
        let answer = self.client.cas().batch_read_blobs(request).await.ok()?.into_inner();
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
