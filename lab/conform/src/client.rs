//! Client of one instance and one digest function.

use std::time::Duration;

use model::DigestFunction;
use prost::Message;
use reapi::{
    asset::{fetch_client::FetchClient, push_client::PushClient},
    bytestream::{
        QueryWriteStatusRequest, QueryWriteStatusResponse, ReadRequest, WriteRequest,
        byte_stream_client::ByteStreamClient,
    },
    digest,
    execution::{
        ActionResult, BatchReadBlobsRequest, BatchReadBlobsResponse, BatchUpdateBlobsRequest,
        BatchUpdateBlobsResponse, Digest, Directory, FindMissingBlobsRequest, GetActionResultRequest,
        GetTreeRequest, GetTreeResponse, UpdateActionResultRequest, action_cache_client::ActionCacheClient,
        batch_read_blobs_response, batch_update_blobs_request, capabilities_client::CapabilitiesClient,
        content_addressable_storage_client::ContentAddressableStorageClient,
        execution_client::ExecutionClient,
    },
    logstream::log_stream_service_client::LogStreamServiceClient,
    longrunning::operations_client::OperationsClient,
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint, Error},
};

use crate::{
    names,
    stop::{Stop, code_name, fail, need},
    watched::Watched,
};

/// Client of one instance and one digest function.
#[derive(Clone)]
pub(crate) struct Client {
    transport: Watched,
    pub(crate) instance: String,
    pub(crate) function: DigestFunction,
}

/// Maximum number of bytes in a message.
pub(crate) const MESSAGE_MAX: usize = 64 << 20;
/// Number of bytes sent in one message of a byte stream.
pub(crate) const PIECE: usize = 256 << 10;
/// Blobs larger than this are uploaded separately, not in a batch.
const BATCHED_MAX: usize = 512 << 10;

macro_rules! services {
    ($($name:ident: $client:ident),+ $(,)?) => {
        $(pub(crate) fn $name(&self) -> $client<Watched> {
            $client::new(self.transport.clone())
                .max_decoding_message_size(MESSAGE_MAX)
                .max_encoding_message_size(MESSAGE_MAX)
        })+
    };
}

/// Converts a URL of the API for the transport: `grpc://` is its usual scheme.
fn url(endpoint: &str) -> String {
    if let Some(rest) = endpoint.strip_prefix("grpc://") {
        format!("http://{rest}")
    } else if endpoint.contains("://") {
        endpoint.to_owned()
    } else {
        format!("http://{endpoint}")
    }
}

/// Opens a separate connection to the endpoint.
pub(crate) async fn connect(endpoint: &str) -> Result<Watched, Error> {
    let endpoint = Endpoint::from_shared(url(endpoint))?
        .connect_timeout(Duration::from_secs(10))
        .tcp_nodelay(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(16 << 20);
    let channel: Channel = endpoint.connect().await?;
    Ok(Watched::new(channel))
}

impl Client {
    pub(crate) fn new(transport: Watched, instance: &str, function: DigestFunction) -> Self {
        Self { transport, instance: instance.to_owned(), function }
    }

    services! {
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

    pub(crate) fn transport(&self) -> &Watched {
        &self.transport
    }

    /// Returns a client of another instance.
    pub(crate) fn of_instance(&self, instance: &str) -> Self {
        Self { instance: instance.to_owned(), ..self.clone() }
    }

    /// Returns a client with another digest function.
    pub(crate) fn of_function(&self, function: DigestFunction) -> Self {
        Self { function, ..self.clone() }
    }

    /// Returns the number of the digest function in requests.
    pub(crate) fn function_value(&self) -> i32 {
        digest::value(self.function).into()
    }

    pub(crate) fn digest(&self, content: &[u8]) -> Digest {
        digest::to_proto(&self.function.digest(content))
    }

    /// Returns a random digest that no blob has.
    pub(crate) fn absent(&self) -> Digest {
        self.digest(names::fresh_text().as_bytes())
    }

    pub(crate) fn read_name(&self, digest: &Digest) -> String {
        names::read_name(&self.instance, self.function, digest)
    }

    pub(crate) fn zstd_read_name(&self, digest: &Digest) -> String {
        names::compressed_read_name(&self.instance, "zstd", self.function, digest)
    }

    pub(crate) fn write_name(&self, digest: &Digest) -> String {
        names::write_name(&self.instance, self.function, digest)
    }

    pub(crate) fn zstd_write_name(&self, digest: &Digest) -> String {
        names::compressed_write_name(&self.instance, self.function, digest)
    }

    /// Returns the digests that the server lacks.
    pub(crate) async fn missing(&self, blob_digests: Vec<Digest>) -> Result<Vec<Digest>, Status> {
        let request = FindMissingBlobsRequest {
            instance_name: self.instance.clone(),
            blob_digests,
            digest_function: self.function_value(),
        };
        Ok(self.cas().find_missing_blobs(request).await?.into_inner().missing_blob_digests)
    }

    /// Returns whether the server has the blob.
    pub(crate) async fn has(&self, digest: &Digest) -> Result<bool, Status> {
        Ok(self.missing(vec![digest.clone()]).await?.is_empty())
    }

    pub(crate) async fn batch_update(
        &self,
        requests: Vec<batch_update_blobs_request::Request>,
    ) -> Result<BatchUpdateBlobsResponse, Status> {
        let request = BatchUpdateBlobsRequest {
            instance_name: self.instance.clone(),
            requests,
            digest_function: self.function_value(),
        };
        Ok(self.cas().batch_update_blobs(request).await?.into_inner())
    }

    pub(crate) async fn batch_read(
        &self,
        digests: Vec<Digest>,
        acceptable_compressors: Vec<i32>,
    ) -> Result<BatchReadBlobsResponse, Status> {
        let request = BatchReadBlobsRequest {
            instance_name: self.instance.clone(),
            digests,
            acceptable_compressors,
            digest_function: self.function_value(),
        };
        Ok(self.cas().batch_read_blobs(request).await?.into_inner())
    }

    /// Reads one blob with the batch call.
    pub(crate) async fn batch_read_one(
        &self,
        digest: &Digest,
    ) -> Result<batch_read_blobs_response::Response, Stop> {
        let answer = self.batch_read(vec![digest.clone()], Vec::new()).await?;
        match <[_; 1]>::try_from(answer.responses) {
            Ok([one]) => Ok(one),
            Err(all) => fail!("a batch read of one digest has {} responses", all.len()),
        }
    }

    pub(crate) async fn put(&self, content: &[u8]) -> Result<Digest, Stop> {
        let digest = self.digest(content);
        if content.len() <= BATCHED_MAX {
            self.put_batch(&[content]).await?;
        } else {
            self.write(&self.write_name(&digest), pieces(content, PIECE)).await?;
        }
        Ok(digest)
    }

    /// Uploads blobs, in batches where possible.
    pub(crate) async fn put_all(&self, contents: &[Vec<u8>]) -> Result<(), Stop> {
        let (small, large): (Vec<&[u8]>, Vec<&[u8]>) =
            contents.iter().map(Vec::as_slice).partition(|content| content.len() <= BATCHED_MAX);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for content in small {
            if bytes + content.len() > 2 * BATCHED_MAX || batch.len() >= 500 {
                self.put_batch(&batch).await?;
                (batch, bytes) = (Vec::new(), 0);
            }
            bytes += content.len();
            batch.push(content);
        }
        if !batch.is_empty() {
            self.put_batch(&batch).await?;
        }
        for content in large {
            self.put(content).await?;
        }
        Ok(())
    }

    async fn put_batch(&self, contents: &[&[u8]]) -> Result<(), Stop> {
        let requests = contents.iter().map(|content| self.update(content)).collect();
        for response in self.batch_update(requests).await?.responses {
            let code = response.status.as_ref().map_or(Code::Ok, |status| Code::from(status.code));
            need!(code == Code::Ok, "an upload was refused with {}", code_name(code));
        }
        Ok(())
    }

    /// Returns the request for this blob in a batch upload.
    pub(crate) fn update(&self, content: &[u8]) -> batch_update_blobs_request::Request {
        batch_update_blobs_request::Request {
            digest: Some(self.digest(content)),
            data: content.to_vec(),
            compressor: 0,
        }
    }

    /// Reads a byte stream by resource name.
    pub(crate) async fn read_at(&self, name: &str, offset: i64, limit: i64) -> Result<Vec<u8>, Status> {
        let mut content = Vec::new();
        for piece in self.read_pieces(name, offset, limit).await? {
            content.extend_from_slice(&piece);
        }
        Ok(content)
    }

    /// Reads a byte stream by resource name and returns its messages separately.
    pub(crate) async fn read_pieces(
        &self,
        name: &str,
        offset: i64,
        limit: i64,
    ) -> Result<Vec<Vec<u8>>, Status> {
        let request = ReadRequest { resource_name: name.to_owned(), read_offset: offset, read_limit: limit };
        let mut stream = self.byte_stream().read(request).await?.into_inner();
        let mut pieces = Vec::new();
        while let Some(piece) = stream.message().await? {
            pieces.push(piece.data);
        }
        Ok(pieces)
    }

    /// Reads a whole blob.
    pub(crate) async fn read(&self, digest: &Digest) -> Result<Vec<u8>, Status> {
        self.read_at(&self.read_name(digest), 0, 0).await
    }

    /// Reads a blob and decodes it as a message.
    pub(crate) async fn read_message<M: Message + Default>(&self, digest: &Digest) -> Result<M, Stop> {
        let content = self.read(digest).await?;
        M::decode(&*content)
            .map_err(|error| Stop::Fail(format!("blob {} cannot be decoded: {error}", digest.hash)))
    }

    /// Writes to a resource name and returns the committed size.
    pub(crate) async fn write(&self, name: &str, mut requests: Vec<WriteRequest>) -> Result<i64, Status> {
        if let Some(first) = requests.first_mut()
            && first.resource_name.is_empty()
        {
            name.clone_into(&mut first.resource_name);
        }
        let answer = self.byte_stream().write(tokio_stream::iter(requests)).await?;
        Ok(answer.into_inner().committed_size)
    }

    pub(crate) async fn write_status(&self, name: &str) -> Result<QueryWriteStatusResponse, Status> {
        let request = QueryWriteStatusRequest { resource_name: name.to_owned() };
        Ok(self.byte_stream().query_write_status(request).await?.into_inner())
    }

    pub(crate) async fn tree(
        &self,
        root: &Digest,
        page_size: i32,
        page_token: &str,
    ) -> Result<Vec<GetTreeResponse>, Status> {
        let request = GetTreeRequest {
            instance_name: self.instance.clone(),
            root_digest: Some(root.clone()),
            page_size,
            page_token: page_token.to_owned(),
            digest_function: self.function_value(),
        };
        let mut stream = self.cas().get_tree(request).await?.into_inner();
        let mut pages = Vec::new();
        while let Some(page) = stream.message().await? {
            pages.push(page);
        }
        Ok(pages)
    }

    /// Returns all directories of a tree.
    pub(crate) async fn tree_directories(&self, root: &Digest) -> Result<Vec<Directory>, Status> {
        Ok(self.tree(root, 0, "").await?.into_iter().flat_map(|page| page.directories).collect())
    }

    pub(crate) async fn action_result(&self, action: &Digest) -> Result<ActionResult, Status> {
        self.action_result_inline(action, false, Vec::new()).await
    }

    pub(crate) async fn action_result_inline(
        &self,
        action: &Digest,
        inline_outputs: bool,
        inline_output_files: Vec<String>,
    ) -> Result<ActionResult, Status> {
        let request = GetActionResultRequest {
            instance_name: self.instance.clone(),
            action_digest: Some(action.clone()),
            inline_stdout: inline_outputs,
            inline_stderr: inline_outputs,
            inline_output_files,
            digest_function: self.function_value(),
        };
        Ok(self.action_cache().get_action_result(request).await?.into_inner())
    }

    pub(crate) async fn update_action_result(
        &self,
        action: &Digest,
        result: ActionResult,
    ) -> Result<ActionResult, Status> {
        let request = UpdateActionResultRequest {
            instance_name: self.instance.clone(),
            action_digest: Some(action.clone()),
            action_result: Some(result),
            results_cache_policy: None,
            digest_function: self.function_value(),
        };
        Ok(self.action_cache().update_action_result(request).await?.into_inner())
    }
}

/// Splits content into write requests; the caller adds the name to the first.
pub(crate) fn pieces(content: &[u8], size: usize) -> Vec<WriteRequest> {
    let mut requests = Vec::new();
    let mut offset = 0;
    for piece in content.chunks(size.max(1)) {
        requests.push(WriteRequest {
            resource_name: String::new(),
            write_offset: offset,
            finish_write: false,
            data: piece.to_vec(),
        });
        offset += i64::try_from(piece.len()).unwrap_or_default();
    }
    if requests.is_empty() {
        requests.push(WriteRequest::default());
    }
    if let Some(last) = requests.last_mut() {
        last.finish_write = true;
    }
    requests
}

/// Compresses as ZSTD of the API.
pub(crate) fn zstd(content: &[u8]) -> Result<Vec<u8>, Stop> {
    zstd::stream::encode_all(content, 1)
        .map_err(|error| Stop::Fail(format!("the tool cannot compress: {error}")))
}

/// Decompresses data sent by a server.
pub(crate) fn unzstd(content: &[u8]) -> Result<Vec<u8>, Stop> {
    if content.is_empty() {
        return Ok(Vec::new());
    }
    zstd::stream::decode_all(content)
        .map_err(|error| Stop::Fail(format!("the server sent an invalid zstd stream: {error}")))
}
