//! `GetTree`: every distinct directory below a root, in pages.
//!
//! A page token is a position in the walk with a mark of the root. A call with a token repeats the walk up to that
//! position: the server keeps no state between calls, and detects a token of another tree.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use cas::Cas;
use futures::{StreamExt as _, stream, stream::BoxStream};
use invariant::Present as _;
use model::{BlobDigest, DigestFunction};
use prost::Message as _;
use reapi::{
    digest,
    execution::{Directory, GetTreeRequest, GetTreeResponse},
};
use tonic::Status;

use crate::{budget::Held, fault::bounded};

/// Maximum number of directories read at once.
const READ_AHEAD: usize = 256;
/// Maximum bytes of directories read at once, and of a page.
const PAGE_BYTES: u64 = 2 << 20;
/// Default number of directories on a page.
const PAGE_DIRECTORIES: usize = 1000;
/// Maximum number of distinct directories of a tree.
const DIRECTORIES_MAX: usize = 1 << 20;
/// Maximum size in bytes of one directory: clients accept messages of a few megabytes only.
const DIRECTORY_BYTES_MAX: u64 = 16 << 20;
/// Bytes of memory for each known directory, and the number of directories for which memory is reserved at once.
const KNOWN_BYTES: u64 = 128;
const KNOWN_STEP: usize = 8192;

/// Streams the pages of a tree.
pub(crate) async fn stream(
    cas: Cas,
    held: Held,
    request: &GetTreeRequest,
) -> Result<BoxStream<'static, Result<GetTreeResponse, Status>>, Status> {
    let function = digest::function(request.digest_function, request.root_digest.as_ref())?;
    let root = digest::required(request.root_digest.as_ref(), function, "root_digest")?;
    let page = match usize::try_from(request.page_size) {
        Ok(0) => PAGE_DIRECTORIES,
        Ok(size) => size.min(PAGE_DIRECTORIES),
        Err(_) => return Err(Status::invalid_argument("page_size is negative")),
    };
    let skip = match request.page_token.as_str() {
        "" => 0,
        token => parse_token(token, &root)?,
    };
    held.grow(PAGE_BYTES * 2).await?;
    let mut walk = Walk { cas, held, root, page, position: 0, known: HashSet::new(), queue: VecDeque::new() };
    walk.discover(root)?;
    walk.skip(skip).await?;
    // Read the first page before answering, so that an error becomes the status of the call.
    let first = walk.page().await?;
    let more = !first.next_page_token.is_empty();
    let rest = stream::try_unfold((walk, more), |(mut walk, more)| async move {
        if !more {
            return Ok(None);
        }
        let page = walk.page().await?;
        let more = !page.next_page_token.is_empty();
        Ok(Some((page, (walk, more))))
    });
    Ok(stream::iter([Ok(first)]).chain(rest).boxed())
}

struct Walk {
    cas: Cas,
    held: Held,
    root: BlobDigest,
    page: usize,
    /// Number of directories visited, present or not.
    position: u64,
    /// Half of each hash suffices to distinguish directories.
    known: HashSet<[u8; 16]>,
    queue: VecDeque<BlobDigest>,
}

impl Walk {
    fn discover(&mut self, directory: BlobDigest) -> Result<(), Status> {
        let half = directory.hash.first_chunk::<16>().copied().present("a hash has fewer than 16 bytes");
        if self.known.insert(half) {
            self.queue.push_back(directory);
        }
        if self.known.len() > DIRECTORIES_MAX {
            let message = format!("the tree has more than {DIRECTORIES_MAX} distinct directories");
            return Err(Status::out_of_range(message));
        }
        Ok(())
    }

    async fn discover_all(&mut self, directory: &Directory) -> Result<(), Status> {
        let before = self.known.len() / KNOWN_STEP;
        for node in &directory.directories {
            let child = digest::required(node.digest.as_ref(), self.root.function, "directories.digest")?;
            self.discover(child)?;
        }
        for _ in before..self.known.len() / KNOWN_STEP {
            self.held.grow(KNOWN_BYTES * KNOWN_STEP as u64).await?;
        }
        Ok(())
    }

    /// Reads the next directories of the walk, limited by `count` and the size of a page.
    async fn read(&mut self, count: usize) -> Result<Vec<Option<Directory>>, Status> {
        let (mut digests, mut bytes) = (Vec::new(), 0);
        while let Some(next) = self.queue.front() {
            if next.size > DIRECTORY_BYTES_MAX {
                let message =
                    format!("directory {next} is too large: the limit is {DIRECTORY_BYTES_MAX} bytes");
                return Err(Status::invalid_argument(message));
            }
            if digests.len() >= count || (bytes + next.size > PAGE_BYTES && !digests.is_empty()) {
                break;
            }
            bytes += next.size;
            digests.extend(self.queue.pop_front());
        }
        let contents = bounded(self.cas.get_many(&digests)).await?;
        let mut directories = Vec::with_capacity(digests.len());
        for (digest, content) in digests.iter().zip(contents) {
            let directory = content.map(|content| decode(digest, content)).transpose()?;
            if let Some(directory) = &directory {
                self.discover_all(directory).await?;
            }
            directories.push(directory);
        }
        self.position += digests.len() as u64;
        Ok(directories)
    }

    async fn skip(&mut self, count: u64) -> Result<(), Status> {
        while self.position < count && !self.queue.is_empty() {
            let left = usize::try_from(count - self.position).unwrap_or(usize::MAX);
            self.read(left.min(READ_AHEAD)).await?;
        }
        Ok(())
    }

    /// Returns the next page, which is empty only at the end. Fails if the root of the tree is missing.
    async fn page(&mut self) -> Result<GetTreeResponse, Status> {
        let (mut directories, mut bytes) = (Vec::new(), 0);
        while directories.len() < self.page && bytes < PAGE_BYTES && !self.queue.is_empty() {
            let at_root = self.position == 0;
            let left = self.page - directories.len();
            let room = self.queue.front().is_some_and(|next| bytes + next.size <= PAGE_BYTES);
            if !room && !directories.is_empty() {
                break;
            }
            let read = self.read(left.min(READ_AHEAD)).await?;
            if at_root && read.first().is_some_and(Option::is_none) {
                return Err(Status::not_found(format!("the store has no directory {}", self.root)));
            }
            for directory in read.into_iter().flatten() {
                bytes += directory.encoded_len() as u64;
                directories.push(directory);
            }
        }
        let next_page_token =
            if self.queue.is_empty() { String::new() } else { token(self.position, &self.root) };
        Ok(GetTreeResponse { directories, next_page_token })
    }
}

fn decode(digest: &BlobDigest, content: Bytes) -> Result<Directory, Status> {
    Directory::decode(content)
        .map_err(|error| Status::invalid_argument(format!("blob {digest} is not a Directory: {error}")))
}

fn token(position: u64, root: &BlobDigest) -> String {
    format!("{position}.{}", mark(position, root))
}

fn parse_token(token: &str, root: &BlobDigest) -> Result<u64, Status> {
    let wrong = || Status::invalid_argument("page_token does not belong to this tree");
    let (position, mark) = token.split_once('.').ok_or_else(wrong)?;
    let position: u64 = position.parse().map_err(|_| wrong())?;
    if mark == self::mark(position, root) { Ok(position) } else { Err(wrong()) }
}

fn mark(position: u64, root: &BlobDigest) -> String {
    let mut mark = DigestFunction::Sha256.digest(format!("GetTree {root} {position}").as_bytes()).hex();
    mark.truncate(32);
    mark
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_its_tree_only() {
        let (one, other) = (DigestFunction::Sha256.digest(b"1"), DigestFunction::Blake3.digest(b"1"));
        let given = token(17, &one);
        assert_eq!(parse_token(&given, &one).unwrap(), 17);
        for (bad, root) in [
            (given.as_str(), &other),
            ("", &one),
            ("17", &one),
            ("17.", &one),
            ("x.y", &one),
            (&given.replace("17.", "18."), &one),
            (&format!("{given}0"), &one),
        ] {
            let error = parse_token(bad, root).unwrap_err();
            assert_eq!(error.code(), tonic::Code::InvalidArgument, "{bad}");
        }
    }
}
