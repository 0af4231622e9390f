//! The content-addressable store through the proxy.

use std::collections::BTreeSet;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use reapi::execution::{
    BatchReadBlobsRequest, BatchReadBlobsResponse, BatchUpdateBlobsRequest, BatchUpdateBlobsResponse, Digest,
    Directory, FindMissingBlobsRequest, FindMissingBlobsResponse, GetChunkMappingRequest,
    GetChunkMappingResponse, GetTreeRequest, GetTreeResponse, RegisterChunkMappingRequest,
    RegisterChunkMappingResponse, SpliceBlobRequest, SpliceBlobResponse, SplitBlobRequest, SplitBlobResponse,
    content_addressable_storage_server::ContentAddressableStorage,
};
use tonic::{Code, Request, Response, Status, Streaming};

use super::{
    Fault,
    upstream::{Answers, Upstream, back, onward},
};

impl Upstream {
    /// Returns the pages of a tree, or the error that ends it.
    async fn pages(&self, request: Request<GetTreeRequest>) -> Result<Vec<GetTreeResponse>, Status> {
        self.client.cas().get_tree(request).await?.into_inner().try_collect().await
    }

    /// Returns whether all directories named in these pages are present.
    async fn all_there(&self, asked: &GetTreeRequest, pages: &[GetTreeResponse]) -> Result<bool, Status> {
        let directories = pages.iter().flat_map(|page| &page.directories);
        let nodes = directories.flat_map(|directory: &Directory| &directory.directories);
        let named: BTreeSet<(String, i64)> = nodes
            .filter_map(|node| node.digest.clone())
            .map(|digest| (digest.hash, digest.size_bytes))
            .collect();
        let request = FindMissingBlobsRequest {
            instance_name: asked.instance_name.clone(),
            blob_digests: named.into_iter().map(|(hash, size_bytes)| Digest { hash, size_bytes }).collect(),
            digest_function: asked.digest_function,
        };
        Ok(self.client.cas().find_missing_blobs(request).await?.into_inner().missing_blob_digests.is_empty())
    }
}

#[tonic::async_trait]
impl ContentAddressableStorage for Upstream {
    type GetTreeStream = Answers<GetTreeResponse>;
    type GetChunkMappingStream = Answers<GetChunkMappingResponse>;

    async fn find_missing_blobs(
        &self,
        request: Request<FindMissingBlobsRequest>,
    ) -> Result<Response<FindMissingBlobsResponse>, Status> {
        let mut answer = self.client.cas().find_missing_blobs(onward(request)).await?;
        let forged = self.forged.lock();
        answer.get_mut().missing_blob_digests.retain(|digest| !forged.contains_key(&digest.hash));
        Ok(answer)
    }

    async fn batch_update_blobs(
        &self,
        request: Request<BatchUpdateBlobsRequest>,
    ) -> Result<Response<BatchUpdateBlobsResponse>, Status> {
        let mut request = onward(request);
        if self.is(Fault::CompressorIgnored) {
            for blob in &mut request.get_mut().requests {
                blob.compressor = 0;
            }
        }
        self.client.cas().batch_update_blobs(request).await
    }

    async fn batch_read_blobs(
        &self,
        request: Request<BatchReadBlobsRequest>,
    ) -> Result<Response<BatchReadBlobsResponse>, Status> {
        self.client.cas().batch_read_blobs(onward(request)).await
    }

    async fn get_tree(
        &self,
        request: Request<GetTreeRequest>,
    ) -> Result<Response<Self::GetTreeStream>, Status> {
        let mut request = onward(request);
        if self.is(Fault::PageSizeIgnored) {
            let asked = request.get_mut();
            asked.page_size = 0;
            asked.page_token.clear();
        }
        let asked = request.get_ref().clone();
        let pages = match self.pages(request).await {
            Err(status) if self.is(Fault::AbsentTreeEmpty) && status.code() == Code::NotFound => Vec::new(),
            answer => answer?,
        };
        if self.is(Fault::TreeEndsAtAbsent) && !self.all_there(&asked, &pages).await? {
            return Err(Status::not_found("a directory is missing"));
        }
        Ok(Response::new(stream::iter(pages.into_iter().map(Ok)).boxed()))
    }

    async fn split_blob(
        &self,
        request: Request<SplitBlobRequest>,
    ) -> Result<Response<SplitBlobResponse>, Status> {
        self.client.cas().split_blob(onward(request)).await
    }

    async fn get_chunk_mapping(
        &self,
        request: Request<GetChunkMappingRequest>,
    ) -> Result<Response<Self::GetChunkMappingStream>, Status> {
        self.client.cas().get_chunk_mapping(onward(request)).await.map(back)
    }

    async fn splice_blob(
        &self,
        request: Request<SpliceBlobRequest>,
    ) -> Result<Response<SpliceBlobResponse>, Status> {
        self.client.cas().splice_blob(onward(request)).await
    }

    async fn register_chunk_mapping(
        &self,
        request: Request<Streaming<RegisterChunkMappingRequest>>,
    ) -> Result<Response<RegisterChunkMappingResponse>, Status> {
        let pieces: Vec<_> = request.into_inner().try_collect().await?;
        self.client.cas().register_chunk_mapping(stream::iter(pieces)).await
    }
}
