//! What an action brought: its console and its outputs.

use std::path::Path;

use globset::{Glob, GlobSet, GlobSetBuilder};
use model::BlobDigest;
use prost::Message as _;
use reapi::execution::{ActionResult, ExecuteOperationMetadata, Tree};
use remote::Remote;

use crate::failure::{FAILED, Failure};

/// What is to be brought back. The protocol knows paths alone: a glob is asked for as the folder that it is below.
pub(crate) struct Wanted {
    globs: GlobSet,
    paths: Vec<String>,
}

impl Wanted {
    /// Reads the globs.
    pub(crate) fn new(patterns: &[String]) -> Result<Self, Failure> {
        let mut builder = GlobSetBuilder::new();
        let mut paths = Vec::new();
        for pattern in patterns {
            let plain = pattern.trim_end_matches('/');
            if plain.starts_with('/') || plain.split('/').any(|part| part == "..") {
                return Err(Failure::usage(format!(
                    "output {pattern:?}: a path inside the folder is expected"
                )));
            }
            let glob = |text: &str| {
                Glob::new(text).map_err(|error| Failure::usage(format!("output {pattern:?}: {error}")))
            };
            builder.add(glob(plain)?);
            builder.add(glob(&format!("{plain}/**"))?);
            let fixed: Vec<&str> =
                plain.split('/').take_while(|part| !part.contains(['*', '?', '[', '{'])).collect();
            paths.push(fixed.join("/"));
        }
        let globs = builder.build().map_err(|error| Failure::usage(error.to_string()))?;
        paths.sort();
        paths.dedup();
        let outer: Vec<String> = paths
            .iter()
            .filter(|path| !paths.iter().any(|other| path != &other && is_below(path, other)))
            .cloned()
            .collect();
        Ok(Self { globs, paths: outer })
    }

    /// As the protocol asks for them.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.paths.clone()
    }

    fn matches(&self, path: &str) -> bool {
        self.globs.is_match(path)
    }
}

fn is_below(path: &str, folder: &str) -> bool {
    folder.is_empty() || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Why an operation waits, if the server says so.
pub(crate) fn reason(metadata: &ExecuteOperationMetadata) -> Option<String> {
    let partial = metadata.partial_execution_metadata.as_ref()?;
    let any = partial.auxiliary_metadata.iter().find(|any| any.type_url.ends_with("google.rpc.Status"))?;
    reapi::rpc::Status::decode(any.value.as_slice()).ok().map(|status| status.message)
}

/// Standard output and standard error.
pub(crate) async fn console(remote: &Remote, result: &ActionResult) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let one = async |raw: &Vec<u8>, digest: Option<&reapi::execution::Digest>| -> Result<Vec<u8>, Failure> {
        match digest {
            Some(digest) if raw.is_empty() && digest.size_bytes > 0 => {
                Ok(remote.read(&read(remote, Some(digest))?).await?)
            }
            _ => Ok(raw.clone()),
        }
    };
    let out = one(&result.stdout_raw, result.stdout_digest.as_ref()).await?;
    Ok((out, one(&result.stderr_raw, result.stderr_digest.as_ref()).await?))
}

fn read(remote: &Remote, digest: Option<&reapi::execution::Digest>) -> Result<BlobDigest, Failure> {
    let digest = digest.ok_or_else(|| Failure::plain(FAILED, "an output has no digest"))?;
    reapi::digest::from_proto(digest, remote.function())
        .map_err(|error| Failure::new(FAILED, "an output", &error))
}

/// Writes the outputs that are wanted into `folder`; returns their paths.
pub(crate) async fn fetch(
    remote: &Remote,
    result: &ActionResult,
    folder: &Path,
    wanted: &Wanted,
) -> Result<Vec<String>, Failure> {
    let mut written = Vec::new();
    for file in result.output_files.iter().filter(|file| wanted.matches(&file.path)) {
        write(remote, folder, &file.path, &read(remote, file.digest.as_ref())?, file.is_executable).await?;
        written.push(file.path.clone());
    }
    for link in result.output_symlinks.iter().filter(|link| wanted.matches(&link.path)) {
        make_link(folder, &link.path, &link.target)?;
        written.push(link.path.clone());
    }
    for directory in &result.output_directories {
        let content = remote.read(&read(remote, directory.tree_digest.as_ref())?).await?;
        let tree = Tree::decode(content.as_slice())
            .map_err(|error| Failure::new(FAILED, "an output folder cannot be decoded", &error))?;
        unfold(remote, &tree, folder, &directory.path, wanted, &mut written).await?;
    }
    Ok(written)
}

async fn unfold(
    remote: &Remote,
    tree: &Tree,
    folder: &Path,
    path: &str,
    wanted: &Wanted,
    written: &mut Vec<String>,
) -> Result<(), Failure> {
    let children: std::collections::HashMap<BlobDigest, &reapi::execution::Directory> =
        tree.children.iter().map(|child| (remote.function().digest(&child.encode_to_vec()), child)).collect();
    let Some(root) = &tree.root else { return Ok(()) };
    let mut waiting = vec![(path.to_owned(), root)];
    while let Some((path, directory)) = waiting.pop() {
        reapi::directory::check_with(directory, reapi::directory::AbsoluteTargets::Allowed)
            .map_err(|error| Failure::new(FAILED, "an output folder is not sound", &error))?;
        let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        for file in &directory.files {
            let to = join(&file.name);
            if wanted.matches(&to) {
                write(remote, folder, &to, &read(remote, file.digest.as_ref())?, file.is_executable).await?;
                written.push(to);
            }
        }
        for link in &directory.symlinks {
            let to = join(&link.name);
            if wanted.matches(&to) {
                make_link(folder, &to, &link.target)?;
                written.push(to);
            }
        }
        for child in &directory.directories {
            let digest = read(remote, child.digest.as_ref())?;
            let found = children.get(&digest);
            let found = found
                .ok_or_else(|| Failure::plain(FAILED, format!("folder {} is not in its tree", child.name)))?;
            waiting.push((join(&child.name), found));
        }
    }
    Ok(())
}

async fn write(
    remote: &Remote,
    folder: &Path,
    path: &str,
    digest: &BlobDigest,
    executable: bool,
) -> Result<(), Failure> {
    let to = folder.join(path);
    prepare(&to)?;
    remote.fetch(digest, &to).await?;
    if executable {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755)).map_err(|error| {
            Failure::new(FAILED, format!("cannot make {} executable", to.display()), &error)
        })?;
    }
    Ok(())
}

fn make_link(folder: &Path, path: &str, target: &str) -> Result<(), Failure> {
    let to = folder.join(path);
    prepare(&to)?;
    std::os::unix::fs::symlink(target, &to)
        .map_err(|error| Failure::new(FAILED, format!("cannot make the link {}", to.display()), &error))
}

/// Makes the folder of a file to come, and room for it: what was there is replaced, not written through.
fn prepare(to: &Path) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::new(FAILED, format!("cannot write {}", to.display()), &error);
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    match std::fs::remove_file(to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}
