//! Console output and output files of an action.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use command_line::failure::{FAILED, Failure};
use disk::Confined;
use globset::{GlobSet, GlobSetBuilder};
use model::{BlobDigest, read_glob};
use prost::Message as _;
use reapi::execution::{ActionResult, Directory, ExecuteOperationMetadata, LogFile, Tree, execution_stage};
use remote::{Meter, Placed, Remote, image_fetch};

use crate::job_text::image_text;

/// The requested outputs. The protocol has paths only, so a glob is requested as the folder that contains its matches.
pub(crate) struct RequestedOutputs {
    /// The patterns of the caller, each with its compiled globs.
    patterns: Vec<(String, GlobSet)>,
    paths: Vec<String>,
}

impl RequestedOutputs {
    /// Parses the output patterns.
    pub(crate) fn new(patterns: &[String]) -> Result<Self, Failure> {
        let mut read = Vec::new();
        let mut paths = Vec::new();
        for pattern in patterns {
            let plain = pattern.trim_end_matches('/');
            if plain.starts_with('/') || plain.split('/').any(|part| part == "..") {
                return Err(Failure::usage(format!(
                    "invalid output {pattern:?}: expected a path inside the folder"
                )));
            }
            let glob = |text: &str| {
                read_glob(text)
                    .map_err(|error| Failure::usage(format!("invalid output {pattern:?}: {error}")))
            };
            let mut builder = GlobSetBuilder::new();
            builder.add(glob(plain)?);
            builder.add(glob(&format!("{plain}/**"))?);
            let globs = builder.build().map_err(|error| Failure::usage(error.to_string()))?;
            read.push((pattern.clone(), globs));
            let fixed: Vec<&str> =
                plain.split('/').take_while(|part| !part.contains(['*', '?', '[', '{'])).collect();
            paths.push(fixed.join("/"));
        }
        paths.sort();
        paths.dedup();
        let outer: Vec<String> = paths
            .iter()
            .filter(|path| !paths.iter().any(|other| path != &other && is_below(path, other)))
            .cloned()
            .collect();
        Ok(Self { patterns: read, paths: outer })
    }

    /// The output paths to request from the executor.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.paths.clone()
    }

    fn matches(&self, path: &str) -> bool {
        self.patterns.iter().any(|(_, globs)| globs.is_match(path))
    }

    /// The patterns that match none of the downloaded outputs. An empty folder is an output too.
    pub(crate) fn missing(&self, downloaded: &DownloadedOutputs) -> Vec<String> {
        let missing = |globs: &GlobSet| {
            !downloaded.paths.iter().chain(&downloaded.folders).any(|path| globs.is_match(path))
        };
        self.patterns.iter().filter(|(_, globs)| missing(globs)).map(|(name, _)| name.clone()).collect()
    }
}

fn is_below(path: &str, folder: &str) -> bool {
    folder.is_empty() || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Why an operation is waiting, if the server reports it.
pub(crate) fn reason(metadata: &ExecuteOperationMetadata) -> Option<String> {
    let partial = metadata.partial_execution_metadata.as_ref()?;
    let any = partial.auxiliary_metadata.iter().find(|any| any.type_url.ends_with("google.rpc.Status"))?;
    reapi::rpc::Status::decode(any.value.as_slice()).ok().map(|status| status.message)
}

/// The current stage of an operation in words.
pub(crate) fn phase(metadata: &ExecuteOperationMetadata) -> Option<String> {
    let worker =
        metadata.partial_execution_metadata.as_ref().map(|it| it.worker.as_str()).unwrap_or_default();
    let on = if worker.is_empty() { String::new() } else { format!(" on {worker}") };
    match execution_stage::Value::try_from(metadata.stage).ok()? {
        execution_stage::Value::CacheCheck => Some("checking the cache".to_owned()),
        execution_stage::Value::Queued => Some("waiting for an executor".to_owned()),
        execution_stage::Value::Executing => Some(match image_fetch(metadata) {
            Some(fetch) => format!("{}{on}", image_text(fetch)),
            None => format!("running{on}"),
        }),
        execution_stage::Value::Unknown | execution_stage::Value::Completed => None,
    }
}

/// The logs of services of an action that did not succeed: where each of them is.
pub(crate) fn service_logs(remote: &Remote, logs: &HashMap<String, LogFile>) -> Vec<String> {
    // The output of the command itself has a name without a dot.
    let mut named: Vec<_> = logs.iter().filter(|(name, _)| name.contains('.')).collect();
    named.sort_by_key(|(name, _)| name.as_str());
    let line = |(name, log): (&String, &LogFile)| {
        let digest = reapi::digest::from_proto(log.digest.as_ref()?, remote.function()).ok()?;
        Some(format!("log of a service, {name}: forebay cas get {digest}"))
    };
    named.into_iter().filter_map(line).collect()
}

/// Downloads standard output and standard error.
pub(crate) async fn console(remote: &Remote, result: &ActionResult) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let inline_or_stored =
        async |raw: &Vec<u8>, digest: Option<&reapi::execution::Digest>| -> Result<Vec<u8>, Failure> {
            match digest {
                Some(digest) if raw.is_empty() && digest.size_bytes > 0 => {
                    Ok(remote.read(&read(remote, Some(digest))?).await?)
                }
                _ => Ok(raw.clone()),
            }
        };
    let out = inline_or_stored(&result.stdout_raw, result.stdout_digest.as_ref()).await?;
    Ok((out, inline_or_stored(&result.stderr_raw, result.stderr_digest.as_ref()).await?))
}

fn read(remote: &Remote, digest: Option<&reapi::execution::Digest>) -> Result<BlobDigest, Failure> {
    let digest = digest.ok_or_else(|| Failure::plain(FAILED, "invalid result: an output has no digest"))?;
    reapi::digest::from_proto(digest, remote.function())
        .map_err(|error| Failure::new(FAILED, "invalid digest of an output", &error))
}

/// The outputs downloaded from a result.
pub(crate) struct DownloadedOutputs {
    /// Files and symbolic links.
    pub(crate) paths: Vec<String>,
    /// Folders, which may be empty.
    folders: Vec<String>,
}

/// Downloads the requested outputs into `folder`.
pub(crate) async fn fetch(
    remote: &Remote,
    result: &ActionResult,
    folder: &Path,
    wanted: &RequestedOutputs,
    meter: &Meter,
) -> Result<DownloadedOutputs, Failure> {
    let mut download = Download::into(folder, remote, wanted)?;
    for file in &result.output_files {
        download.file(&file.path, file.digest.as_ref(), file.is_executable)?;
    }
    for link in &result.output_symlinks {
        download.link(&link.path, &link.target);
    }
    for directory in &result.output_directories {
        let content = remote.read(&read(remote, directory.tree_digest.as_ref())?).await?;
        let tree = Tree::decode(content.as_slice())
            .map_err(|error| Failure::new(FAILED, "cannot decode an output folder", &error))?;
        download.unfold(&tree, &directory.path)?;
    }
    let Download { opened, files, links, downloaded, .. } = download;
    remote.fetch_many(files, meter).await?;
    // Links come last: nothing is written through them.
    for (path, target) in links {
        let above = opened.make_folder(path.parent().unwrap_or(Path::new("")));
        let made = above.and_then(|_| opened.place_at(&path)?.link_to(target.as_ref()));
        made.map_err(|error| {
            Failure::new(FAILED, format!("cannot create the link {}", path.display()), &error)
        })?;
    }
    Ok(downloaded)
}

/// The part of a result that is downloaded. Whatever the result says, nothing is written outside of the folder.
struct Download<'a> {
    remote: &'a Remote,
    opened: Confined,
    wanted: &'a RequestedOutputs,
    files: Vec<Placed>,
    links: Vec<(PathBuf, String)>,
    downloaded: DownloadedOutputs,
}

impl<'a> Download<'a> {
    fn into(folder: &Path, remote: &'a Remote, wanted: &'a RequestedOutputs) -> Result<Self, Failure> {
        let opened = folder.canonicalize().and_then(|folder| Confined::at(&folder));
        let opened = opened
            .map_err(|error| Failure::new(FAILED, format!("cannot open {}", folder.display()), &error))?;
        let downloaded = DownloadedOutputs { paths: Vec::new(), folders: Vec::new() };
        Ok(Self { remote, opened, wanted, files: Vec::new(), links: Vec::new(), downloaded })
    }

    fn file(
        &mut self,
        path: &str,
        digest: Option<&reapi::execution::Digest>,
        executable: bool,
    ) -> Result<(), Failure> {
        if self.wanted.matches(path) {
            let digest = read(self.remote, digest)?;
            let below = Some(self.opened.clone());
            self.files.push(Placed { digest, below, path: path.into(), executable });
            self.downloaded.paths.push(path.to_owned());
        }
        Ok(())
    }

    fn link(&mut self, path: &str, target: &str) {
        if self.wanted.matches(path) {
            self.links.push((path.into(), target.to_owned()));
            self.downloaded.paths.push(path.to_owned());
        }
    }

    fn unfold(&mut self, tree: &Tree, path: &str) -> Result<(), Failure> {
        let function = self.remote.function();
        let children: HashMap<BlobDigest, &Directory> =
            tree.children.iter().map(|child| (function.digest(&child.encode_to_vec()), child)).collect();
        let Some(root) = &tree.root else { return Ok(()) };
        let mut waiting = vec![(path.to_owned(), root)];
        while let Some((path, directory)) = waiting.pop() {
            reapi::directory::check_with(directory, reapi::directory::AbsoluteTargets::Allowed)
                .map_err(|error| Failure::new(FAILED, "an output folder is invalid", &error))?;
            if self.wanted.matches(&path) {
                self.downloaded.folders.push(path.clone());
            }
            let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
            for file in &directory.files {
                self.file(&join(&file.name), file.digest.as_ref(), file.is_executable)?;
            }
            for link in &directory.symlinks {
                self.link(&join(&link.name), &link.target);
            }
            for child in &directory.directories {
                let digest = read(self.remote, child.digest.as_ref())?;
                let found = children.get(&digest);
                let found = found.ok_or_else(|| {
                    Failure::plain(FAILED, format!("folder {} is missing in its tree", child.name))
                })?;
                waiting.push((join(&child.name), found));
            }
        }
        Ok(())
    }
}
