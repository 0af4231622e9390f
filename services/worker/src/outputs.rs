//! Stores the files that a build's output globs match.

use std::{
    fs::{FileType, Metadata},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cas::{Cas, CasError, Given, PutProgress};
use disk::Confined;
use globset::GlobSet;
use invariant::impossible;
use jobs::passing_code;
use model::{
    BlobDigest, Digest, DigestFunction, OutputFile, OutputNotKept, Reason, ReasonCode, output_globs,
};
use nix::errno::Errno;
use policy::store_stall_limit;

use crate::stall::unless_stalled;

/// Maximum bytes of the list of outputs: it is part of the result, a message of at most 1 MiB.
const LIST_BYTES_MAX: usize = 400 << 10;
/// Bytes of an entry in that list in addition to its path.
const ENTRY_BYTES: usize = 160;

struct Found {
    relative: String,
    /// Resolved: no part of it is a link.
    path: PathBuf,
    size: u64,
    executable: bool,
}

/// Maximum number of left-out outputs listed in a result.
const NAMED_MAX: usize = 100;

/// The store that outputs go to, as an attempt to store them uses it.
pub(crate) struct OutputStore<'a> {
    pub(crate) cas: &'a Cas,
    pub(crate) progress: &'a Arc<PutProgress>,
    /// What is left of a wait for the store that has begun.
    pub(crate) wait_left: Option<Duration>,
}

impl OutputStore<'_> {
    /// Waits for `work` on the store. If the store is not only a folder, `work` is given up when it makes
    /// no progress for `limit`.
    async fn unless_stalled<T>(&self, work: impl Future<Output = T>, limit: Duration) -> Result<T, Reason> {
        // A slow disk does answer.
        if !self.cas.has_backing() {
            return Ok(work.await);
        }
        let done = unless_stalled(work, self.progress, limit).await;
        if done.is_err() {
            self.cas.report_no_answer();
        }
        done
    }
}

/// An output glob that matches no stored file.
pub(crate) struct MissingOutput {
    pub(crate) glob: String,
    /// The first file by path that it matches but that was left out.
    pub(crate) left_out: Option<OutputNotKept>,
}

/// The outputs of a build.
#[derive(Default)]
pub(crate) struct Outputs {
    /// The stored files, sorted by path.
    pub(crate) files: Vec<OutputFile>,
    pub(crate) missing: Vec<MissingOutput>,
    /// The first files by path that matched but were left out, and the number of all such files. A folder that an
    /// output names counts as one.
    pub(crate) not_kept: Vec<OutputNotKept>,
    pub(crate) not_kept_count: u64,
}

/// Files to keep: those in a folder that match globs.
pub(crate) struct OutputSource {
    pub(crate) root: PathBuf,
    pub(crate) patterns: Vec<String>,
}

/// Stores the files of all `sources`; of two with the same path, the one of the later source.
pub(crate) async fn keep_all(
    cas: &OutputStore<'_>,
    sources: &[OutputSource],
    size_max: u64,
) -> Result<Outputs, Reason> {
    let mut all = Outputs::default();
    for OutputSource { root, patterns } in sources {
        let Outputs { files, missing, not_kept, not_kept_count } =
            keep(cas, root, patterns, size_max).await?;
        all.files.retain(|earlier| files.iter().all(|file| file.path != earlier.path));
        all.files.extend(files);
        all.missing.extend(missing);
        all.not_kept.extend(not_kept);
        all.not_kept_count += not_kept_count;
    }
    all.files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(all)
}

/// Stores the files under `root` that match `patterns`.
async fn keep(
    cas: &OutputStore<'_>,
    root: &Path,
    patterns: &[String],
    size_max: u64,
) -> Result<Outputs, Reason> {
    if patterns.is_empty() {
        return Ok(Outputs::default());
    }
    let globs = output_globs(patterns)?;
    let folder = root.to_owned();
    let walked = tokio::task::spawn_blocking(move || {
        let mut walk = Walk::of(&folder, &globs)?;
        walk.all().map(|()| (walk.found, walk.left_out))
    });
    let walked = walked.await.map_err(io::Error::other).and_then(|walked| walked);
    let (mut found, mut not_kept) = walked.map_err(|error| Reason {
        code: ReasonCode::OutputNotKept,
        message: format!("cannot search for the outputs: {error}"),
    })?;
    found.sort_by(|a, b| a.relative.cmp(&b.relative));
    let missing = missing(patterns, &found)?;
    not_kept.extend(folders(root, &missing));
    not_kept.sort_by(|a, b| a.path.cmp(&b.path));
    let missing = explained(missing, &not_kept);
    let not_kept_count = not_kept.len() as u64;
    not_kept.truncate(NAMED_MAX);
    let listed: usize = found.iter().map(|file| file.relative.len() + ENTRY_BYTES).sum();
    if listed > LIST_BYTES_MAX {
        let message = format!(
            "the list of {} outputs needs {listed} bytes, the limit is {LIST_BYTES_MAX}: declare an \
             archive of them instead",
            found.len()
        );
        return Err(Reason { code: ReasonCode::OutputNotKept, message });
    }
    if let Some(file) = found.iter().find(|file| file.size > size_max) {
        let message = format!("output {} has {} bytes, the limit is {size_max}", file.relative, file.size);
        return Err(Reason { code: ReasonCode::OutputNotKept, message });
    }
    let files = store(cas, found).await?;
    Ok(Outputs { files, missing, not_kept, not_kept_count })
}

/// Stores files. All of them are in the store when this returns, for at least `cas_keep_min_seconds`.
async fn store(to: &OutputStore<'_>, found: Vec<Found>) -> Result<Vec<OutputFile>, Reason> {
    let OutputStore { cas, progress, wait_left } = to;
    let failed = |what: &str, error: &CasError| Reason {
        code: passing_code(error).unwrap_or(ReasonCode::OutputNotKept),
        message: format!("{what}: {}", telemetry::error_chain(error)),
    };
    let paths = found.iter().map(|file| file.path.clone()).collect();
    let largest = found.iter().map(|file| file.size).max().unwrap_or_default();
    let storing = cas.put_files_with_progress(DigestFunction::Sha256, paths, Given::Watched, progress);
    let stored = to.unless_stalled(storing, store_stall_limit(largest, *wait_left)).await?;
    if let Some(error) = stored.error {
        let file = found.get(stored.digests.len()).map_or("", |file| file.relative.as_str());
        return Err(failed(&format!("output {file} could not be stored"), &error));
    }
    let output = |(file, blob): (Found, &BlobDigest)| OutputFile {
        path: file.relative,
        digest: Digest::from_sha256(blob.hash),
        size_bytes: blob.size,
        executable: file.executable,
    };
    let files: Vec<OutputFile> = found.into_iter().zip(&stored.digests).map(output).collect();
    // The first may have been evicted while the last were stored.
    let limit = store_stall_limit(0, *wait_left);
    let gone = to.unless_stalled(cas.missing(&stored.digests), limit).await?;
    let gone = gone.map_err(|error| failed("the outputs could not be checked", &error))?;
    if let Some(file) = files.iter().find(|file| gone.contains(&file.blob())) {
        let message = format!("output {} was evicted before all outputs were stored", file.path);
        return Err(Reason { code: ReasonCode::DiskFull, message });
    }
    Ok(files)
}

/// The patterns that match no file.
fn missing(patterns: &[String], found: &[Found]) -> Result<Vec<String>, Reason> {
    let globs = output_globs(patterns)?;
    let mut made = vec![false; patterns.len()];
    for file in found {
        if made.iter().all(|made| *made) {
            break;
        }
        for index in globs.matches(&file.relative) {
            if let Some(made) = made.get_mut(index) {
                *made = true;
            } else {
                impossible!("output glob {index} matches, but only {} are compiled", patterns.len());
            }
        }
    }
    Ok(patterns.iter().zip(made).filter(|(_, made)| !made).map(|(pattern, _)| pattern.clone()).collect())
}

/// The missing outputs that are folders.
fn folders(root: &Path, missing: &[String]) -> Vec<OutputNotKept> {
    let named = missing.iter().map(|pattern| pattern.trim_start_matches("./").trim_end_matches('/'));
    let opened = Confined::at(root).ok();
    let is_folder = |name: &&str| {
        let found = opened.as_ref().and_then(|root| root.metadata(Path::new(name)).ok());
        !name.is_empty() && found.is_some_and(|meta| meta.is_dir())
    };
    let folder = |name: &str| OutputNotKept {
        path: name.to_owned(),
        reason: format!("it is a folder; the output {name}/** keeps its files"),
    };
    named.filter(is_folder).map(folder).collect()
}

/// The missing outputs, each with the first of `not_kept` that it matches.
fn explained(missing: Vec<String>, not_kept: &[OutputNotKept]) -> Vec<MissingOutput> {
    let explain = |glob: String| {
        // A glob that ends in an escaped slash is invalid without the slash: no folder explains it.
        let folder = output_globs(&[glob.trim_end_matches('/').to_owned()]).ok();
        let left_out =
            folder.and_then(|folder| not_kept.iter().find(|it| folder.is_match(&it.path)).cloned());
        MissingOutput { glob, left_out }
    };
    missing.into_iter().map(explain).collect()
}

/// A search for the files that globs match. What the build left may replace folders by links meanwhile, which are not followed.
struct Walk<'a> {
    /// The folder to search, as a resolved path.
    root: PathBuf,
    opened: Confined,
    globs: &'a GlobSet,
    found: Vec<Found>,
    left_out: Vec<OutputNotKept>,
}

impl<'a> Walk<'a> {
    fn of(folder: &Path, globs: &'a GlobSet) -> io::Result<Self> {
        let root = folder.canonicalize()?;
        let opened = Confined::open(&root)?;
        Ok(Self { root, opened, globs, found: Vec::new(), left_out: Vec::new() })
    }

    /// Collects files only, and no links out of the workspace; a link to a file inside is stored as that file.
    fn all(&mut self) -> io::Result<()> {
        // One folder is open at a time, however deep they are.
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let opened = match self.opened.folder(&folder) {
                Err(error) if error.kind() == io::ErrorKind::InvalidFilename => {
                    self.leave_out(&folder, "its path is too long");
                    continue;
                }
                Err(error) if is_gone(&error) => {
                    self.leave_out(&folder, "it was replaced meanwhile");
                    continue;
                }
                opened => opened?,
            };
            for entry in opened.entries()? {
                let entry = entry?;
                let (path, kind) = (folder.join(entry.file_name()), entry.file_type()?);
                if kind.is_dir() {
                    folders.push(path);
                } else if self.globs.is_match(&path) {
                    match self.file(&path, kind) {
                        Ok(found) => self.found.push(found),
                        Err(reason) => self.leave_out(&path, reason),
                    }
                }
            }
        }
        Ok(())
    }

    fn leave_out(&mut self, path: &Path, reason: &str) {
        let path = model::brief(path.to_string_lossy().into_owned());
        self.left_out.push(OutputNotKept { path, reason: reason.to_owned() });
    }

    /// The file to store, or why it cannot be stored.
    fn file(&self, path: &Path, kind: FileType) -> Result<Found, &'static str> {
        // A client could not request a path that is not UTF-8.
        let name = path.to_str().ok_or("its name is not UTF-8")?;
        if !kind.is_file() && !kind.is_symlink() {
            return Err("it is a pipe, a socket or a device");
        }
        let real = if kind.is_symlink() {
            let real = self.root.join(path).canonicalize().map_err(|_| "it is a broken link")?;
            real.strip_prefix(&self.root).map_err(|_| "it is a link out of the workspace")?.to_owned()
        } else {
            path.to_owned()
        };
        let meta: Metadata = self.opened.metadata(&real).map_err(|_| "its metadata cannot be read")?;
        if !meta.is_file() {
            return Err("it is a link to something that is not a file");
        }
        let executable = meta.permissions().mode() & 0o111 != 0;
        Ok(Found { relative: name.to_owned(), path: self.root.join(real), size: meta.len(), executable })
    }
}

/// Whether a folder that was there is now something else.
fn is_gone(error: &io::Error) -> bool {
    let error = error.raw_os_error().map(Errno::from_raw);
    matches!(error, Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use cas::CasConfig;

    use super::*;
    use crate::testing::Exchanges;

    #[tokio::test]
    async fn s10_a_folder_that_becomes_a_link_gives_no_other_file() {
        let place = tempfile::tempdir().unwrap();
        let [root, outside] = ["root", "outside"].map(|name| place.path().join(name));
        for folder in [&root.join("out"), &outside] {
            fs::create_dir_all(folder).unwrap();
        }
        for number in 0..50 {
            fs::write(root.join(format!("out/f{number}")), "mine").unwrap();
            fs::write(outside.join(format!("f{number}")), "secret").unwrap();
        }
        let cas = Cas::open(CasConfig::new(place.path().join("store"))).unwrap();
        let progress = Arc::default();
        let store = OutputStore { cas: &cas, progress: &progress, wait_left: None };
        let sources = [OutputSource { root: root.clone(), patterns: vec!["out/*".to_owned()] }];
        let kept = keep_all(&store, &sources, u64::MAX).await.unwrap();
        assert_eq!(kept.files.len(), 50);
        let mine = kept.files[0].digest.clone();
        let _exchanges = Exchanges::of(root.join("out"), &outside);
        for _ in 0..200 {
            let kept = keep_all(&store, &sources, u64::MAX).await;
            let files = kept.map(|kept| kept.files).unwrap_or_default();
            assert!(files.iter().all(|file| file.digest == mine), "{files:?}");
        }
    }

    #[tokio::test]
    async fn s10_folders_of_any_depth_need_one_descriptor() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        fs::create_dir(&root).unwrap();
        let mut folder = Confined::at(&root).unwrap();
        for _ in 0..3_000 {
            let below = folder.place("d");
            fs::create_dir(below.path()).unwrap();
            folder = folder.folder("d".as_ref()).unwrap();
        }
        fs::write(root.join("d/file"), "").unwrap();
        let globs = output_globs(&["**".to_owned()]).unwrap();
        let mut walk = Walk::of(&root, &globs).unwrap();
        walk.all().unwrap();
        assert_eq!(walk.found.len(), 1);
        assert!(walk.left_out[0].reason.contains("too long"), "{:?}", walk.left_out);
        disk::remove_tree(&root).unwrap();
    }

    #[test]
    fn what_is_left_out_is_not_reported_as_missing_too() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("out")).unwrap();
        let missing = ["./out/", "s.sock", "none", r"out\/"].map(ToOwned::to_owned);
        let mut not_kept = folders(root.path(), &missing);
        assert_eq!(not_kept.len(), 1);
        assert!(not_kept[0].path == "out" && not_kept[0].reason.contains("out/**"), "{not_kept:?}");
        not_kept.push(OutputNotKept { path: "s.sock".to_owned(), reason: "it is a socket".to_owned() });
        let explained = explained(missing.to_vec(), &not_kept);
        let paths = explained.iter().map(|missing| missing.left_out.as_ref().map(|it| it.path.as_str()));
        assert_eq!(paths.collect::<Vec<_>>(), [Some("out"), Some("s.sock"), None, None]);
    }
}
