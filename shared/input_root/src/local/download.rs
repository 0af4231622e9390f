//! Writes the outputs of an action into a folder.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use hashing::{CopyError, copy_stream};
use model::{BlobDigest, DigestFunction};
use prost::Message as _;
use reapi::{
    digest::from_proto,
    directory::{AbsoluteTargets, check_with},
    execution::{ActionResult, Digest, Directory, NodeProperties, OutputDirectory},
};
use rustix::fs::{AtFlags, Mode, OFlags, Timespec};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use super::LocalError;
use crate::{at, plan::DEPTH_MAX, spec::join};

/// Maximum number of files that are fetched at once.
const FETCHES: usize = 16;

/// Maximum size in bytes of a message, which is read whole.
const MESSAGE_BYTES_MAX: u64 = 512 << 20;

/// Maximum number of files, directories and symlinks that are written.
const ENTRIES_MAX: usize = 2_000_000;

/// A source of blobs. The caller verifies the content against the digest.
pub trait BlobSource: Send + Sync {
    /// Streams the pieces of a blob, in order.
    fn read(
        &self,
        digest: &BlobDigest,
    ) -> impl Future<Output = Result<Pieces, Box<dyn std::error::Error + Send + Sync>>> + Send;
}

/// Pieces of a blob, in order.
type Pieces = BoxStream<'static, Result<Bytes, Box<dyn std::error::Error + Send + Sync>>>;

/// What was written to the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Downloaded {
    /// Number of files written.
    pub files: u64,
    /// Bytes of the files.
    pub bytes: u64,
}

/// The wire form of a `Tree`, with its directories as they are hashed.
#[derive(Clone, PartialEq, prost::Message)]
struct RawTree {
    #[prost(bytes = "bytes", tag = "1")]
    root: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    children: Vec<Bytes>,
}

/// One file to write.
struct Wanted {
    place: String,
    digest: BlobDigest,
    executable: bool,
    props: Option<NodeProperties>,
    inline: Bytes,
}

#[derive(Default)]
struct DownloadPlan {
    files: Vec<Wanted>,
    dirs: Vec<String>,
    links: Vec<(String, String)>,
}

impl DownloadPlan {
    fn len(&self) -> usize {
        self.files.len() + self.dirs.len() + self.links.len()
    }
}

/// Writes all outputs of a result into `folder`, which is the working directory of the action. Nothing is written
/// outside of it, whatever the result contains. Each file appears complete.
#[expect(deprecated, reason = "servers before version 2.1 fill these fields")]
pub async fn download(
    source: &impl BlobSource,
    result: &ActionResult,
    function: DigestFunction,
    folder: &Path,
) -> Result<Downloaded, LocalError> {
    let mut plan = DownloadPlan::default();
    for file in &result.output_files {
        let digest = digest(file.digest.as_ref(), function)?;
        let inline = Bytes::copy_from_slice(&file.contents);
        let props = file.node_properties.clone();
        plan.files.push(Wanted {
            place: place(&file.path)?,
            digest,
            executable: file.is_executable,
            props,
            inline,
        });
    }
    for output in &result.output_directories {
        directory(source, output, function, &mut plan).await?;
    }
    let old = result.output_file_symlinks.iter().chain(&result.output_directory_symlinks);
    for link in result.output_symlinks.iter().chain(old) {
        let link = (place(&link.path)?, link.target.clone());
        if !plan.links.contains(&link) {
            plan.links.push(link);
        }
    }
    write(source, plan, folder).await
}

/// Normalises a path in the folder; the folder itself is one.
fn place(path: &str) -> Result<String, LocalError> {
    join("", path)
        .ok_or_else(|| LocalError::Result(format!("output {path:?} is outside of the working directory")))
}

fn digest(digest: Option<&Digest>, function: DigestFunction) -> Result<BlobDigest, LocalError> {
    let digest = digest.ok_or_else(|| LocalError::Result("an output has no digest".into()))?;
    from_proto(digest, function).map_err(|error| LocalError::Result(error.to_string()))
}

async fn directory(
    source: &impl BlobSource,
    output: &OutputDirectory,
    function: DigestFunction,
    plan: &mut DownloadPlan,
) -> Result<(), LocalError> {
    let mut known: HashMap<BlobDigest, Bytes> = HashMap::new();
    let root = if let Some(tree) = &output.tree_digest {
        let tree = whole(source, &digest(Some(tree), function)?, &output.path).await?;
        let tree = RawTree::decode(tree).map_err(|error| {
            LocalError::Result(format!("invalid tree of output {:?}: {error}", output.path))
        })?;
        known.extend(tree.children.into_iter().map(|bytes| (function.digest(&bytes), bytes)));
        tree.root
    } else {
        whole(source, &digest(output.root_directory_digest.as_ref(), function)?, &output.path).await?
    };
    let mut stack = vec![(place(&output.path)?, root, 0)];
    while let Some((place, bytes, depth)) = stack.pop() {
        let wrong = |why: String| LocalError::Result(format!("directory {place:?} is not valid: {why}"));
        let directory = Directory::decode(bytes).map_err(|error| wrong(error.to_string()))?;
        check_with(&directory, AbsoluteTargets::Allowed).map_err(|fault| wrong(fault.to_string()))?;
        if depth > DEPTH_MAX || plan.len() > ENTRIES_MAX {
            return Err(wrong(format!("it exceeds {ENTRIES_MAX} entries or {DEPTH_MAX} levels")));
        }
        for node in directory.directories {
            let digest = digest(node.digest.as_ref(), function)?;
            let bytes = match known.get(&digest) {
                Some(bytes) => bytes.clone(),
                None => whole(source, &digest, &output.path).await?,
            };
            known.insert(digest, bytes.clone());
            stack.push((below(&place, &node.name), bytes, depth + 1));
        }
        for node in directory.files {
            let digest = digest(node.digest.as_ref(), function)?;
            plan.files.push(Wanted {
                place: below(&place, &node.name),
                digest,
                executable: node.is_executable,
                props: node.node_properties,
                inline: Bytes::new(),
            });
        }
        plan.links
            .extend(directory.symlinks.into_iter().map(|node| (below(&place, &node.name), node.target)));
        plan.dirs.push(place);
    }
    Ok(())
}

fn below(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}/{name}") }
}

async fn whole(source: &impl BlobSource, digest: &BlobDigest, path: &str) -> Result<Bytes, LocalError> {
    if digest.size > MESSAGE_BYTES_MAX {
        return Err(LocalError::Result(format!(
            "directory message {digest} of output {path:?} is too large"
        )));
    }
    let mut bytes = Vec::<u8>::new();
    fetch(source, digest, path, &mut bytes).await?;
    Ok(bytes.into())
}

/// Writes a blob to `out` and verifies it.
async fn fetch(
    source: &impl BlobSource,
    digest: &BlobDigest,
    path: &str,
    out: &mut (impl AsyncWrite + Unpin),
) -> Result<(), LocalError> {
    if digest.is_empty_blob() {
        return Ok(());
    }
    let failed = |source| LocalError::Fetch { digest: *digest, path: path.into(), source };
    let pieces = source.read(digest).await.map_err(failed)?;
    let found = copy_stream(pieces, out, digest.function.hasher()).await.map_err(|error| match error {
        CopyError::Read(error) => failed(error),
        CopyError::Write(error) => LocalError::io("write", path)(error),
    })?;
    if found == *digest { Ok(()) } else { Err(failed(format!("the content has digest {found}").into())) }
}

async fn write(
    source: &impl BlobSource,
    plan: DownloadPlan,
    folder: &Path,
) -> Result<Downloaded, LocalError> {
    std::fs::create_dir_all(folder).map_err(LocalError::io("create folder", folder))?;
    let root = Arc::new(at::open_path(folder).map_err(LocalError::io("open", folder))?);
    for dir in &plan.dirs {
        parent(&root, &below(dir, "x"))?;
    }
    let done = Downloaded {
        files: plan.files.len() as u64,
        bytes: plan.files.iter().map(|file| file.digest.size).sum(),
    };
    let number = AtomicU64::new(0);
    futures::stream::iter(plan.files.iter().map(|wanted| {
        let temp = format!(".forebay-{}-{}", std::process::id(), number.fetch_add(1, Ordering::Relaxed));
        file(source, &root, wanted, temp)
    }))
    .buffer_unordered(FETCHES)
    .try_for_each(async |()| Ok(()))
    .await?;
    // Symlinks come last, so that nothing is written through them.
    for (place, target) in &plan.links {
        let (dir, name) = parent(&root, place)?;
        let made = rustix::fs::unlinkat(&dir, name, AtFlags::empty()).or_else(|error| match error {
            rustix::io::Errno::NOENT => Ok(()),
            error => Err(error),
        });
        let made = made.and_then(|()| rustix::fs::symlinkat(&**target, &dir, name));
        made.map_err(|error| LocalError::io("create symlink", place)(error.into()))?;
    }
    Ok(done)
}

/// Opens the directory of a path and creates it if necessary. Also returns the last name of the path.
fn parent<'a>(root: &OwnedFd, place: &'a str) -> Result<(OwnedFd, &'a str), LocalError> {
    let (parent, name) = place.rsplit_once('/').unwrap_or(("", place));
    if name.is_empty() {
        return Err(LocalError::Result("an output is the working directory but not a directory".into()));
    }
    let make = |at: std::os::fd::BorrowedFd<'_>, name: &str| {
        rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o755))?;
        at::open_dir(at, name)
    };
    let dir =
        at::make_beneath(root.as_fd(), parent, make).map_err(LocalError::io("create folder", parent))?;
    Ok((dir, name))
}

async fn file(
    source: &impl BlobSource,
    root: &OwnedFd,
    wanted: &Wanted,
    temp: String,
) -> Result<(), LocalError> {
    let (dir, name) = parent(root, &wanted.place)?;
    let failed = || LocalError::io("write", &wanted.place);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let default = if wanted.executable { 0o755 } else { 0o644 };
    let made = rustix::fs::openat(&dir, &*temp, flags, Mode::from_raw_mode(default));
    let mut file = tokio::fs::File::from_std(File::from(made.map_err(|error| failed()(error.into()))?));
    let written = async {
        if wanted.inline.is_empty() {
            fetch(source, &wanted.digest, &wanted.place, &mut file).await?;
        } else {
            file.write_all(&wanted.inline).await.map_err(failed())?;
        }
        file.flush().await.map_err(failed())?;
        set_props(&file, wanted.props.as_ref()).map_err(failed())?;
        at::rename(&dir, &*temp, &dir, name).map_err(failed())
    };
    let written = written.await;
    if written.is_err() {
        // An incomplete file is useless. The error of the download matters more than one of the removal.
        let _ = rustix::fs::unlinkat(&dir, &*temp, AtFlags::empty());
    }
    written
}

fn set_props(file: &tokio::fs::File, props: Option<&NodeProperties>) -> io::Result<()> {
    let Some(props) = props else { return Ok(()) };
    if let Some(mode) = &props.unix_mode {
        at::set_mode(file, mode.value & 0o777)?;
    }
    if let Some(mtime) = &props.mtime {
        let nanos = mtime.nanos.clamp(0, 999_999_999).into();
        at::set_times(file, Some(Timespec { tv_sec: mtime.seconds, tv_nsec: nanos }))?;
    }
    Ok(())
}
