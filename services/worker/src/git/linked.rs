//! Where else a local repository makes git read: its own folder can name others.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::sources::{Refusal, Sources};

/// Names that git tries for a repository called `path`, as suffixes.
const NAMES: [&str; 4] = ["", "/.git", ".git/.git", ".git"];
/// Maximum number of repositories whose objects a repository reads in turn, as in git.
const DEPTH: usize = 5;
/// Maximum size of a file that names a folder.
const BYTES: u64 = 64 << 10;

/// Resolves a local repository to its path; fails if git would read outside of the folders of `sources` for it.
pub(super) fn resolve(path: &Path, sources: &Sources) -> Result<PathBuf, Refusal> {
    let found: Vec<PathBuf> =
        NAMES.iter().map(|suffix| with(path, suffix)).filter(|it| it.exists()).collect();
    // Without any, this says whether the path may be asked for.
    let resolved = sources.local(found.first().map_or(path, PathBuf::as_path))?;
    for candidate in &found {
        check(&sources.local(candidate)?, sources, DEPTH)?;
    }
    Ok(resolved)
}

/// Checks the folders that a repository, or the file in place of one, names.
fn check(repository: &Path, sources: &Sources, depth: usize) -> Result<(), Refusal> {
    if repository.is_file() {
        // A bundle is a file too, and names no folder.
        let Some(text) = text(repository) else { return Ok(()) };
        let Some(named) = text.strip_prefix("gitdir: ") else { return Ok(()) };
        return follow(&beside(repository, named.trim_end()), sources, depth);
    }
    for folder in ["objects", "objects/pack", "refs"] {
        let folder = repository.join(folder);
        if folder.is_symlink() {
            sources.local(&folder)?;
        }
    }
    if let Some(common) = text(&repository.join("commondir")) {
        follow(&repository.join(common.trim_end()), sources, depth)?;
    }
    let alternates = text(&repository.join("objects/info/alternates")).unwrap_or_default();
    for line in alternates.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let objects = repository.join("objects").join(line);
        follow(objects.parent().unwrap_or(&objects), sources, depth)?;
        sources.local(&objects)?;
    }
    Ok(())
}

fn follow(named: &Path, sources: &Sources, depth: usize) -> Result<(), Refusal> {
    let resolved = sources.local(named)?;
    match depth.checked_sub(1) {
        Some(depth) => check(&resolved, sources, depth),
        None => Err(Refusal(format!("the repository {} names too many others in turn", named.display()))),
    }
}

fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn beside(file: &Path, named: &str) -> PathBuf {
    file.parent().map_or_else(|| named.into(), |folder| folder.join(named))
}

/// The text of a small file; anything else names no folder.
fn text(file: &Path) -> Option<String> {
    let is_small = |meta: fs::Metadata| meta.is_file() && meta.len() <= BYTES;
    fs::metadata(file).is_ok_and(is_small).then(|| fs::read_to_string(file).ok()).flatten()
}
