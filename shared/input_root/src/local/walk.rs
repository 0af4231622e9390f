//! Walks the entries of a folder that belong to a build's context.

use std::path::Path;

use ignore::{Walk, WalkBuilder};
use model::FARM_DATA_MARK;

/// Lists paths to leave out, in the syntax of `.gitignore`, and may re-include paths that `.gitignore` excludes.
const IGNORE_FILE: &str = ".forebayignore";

/// Walks `folder`: each folder comes before its entries, which are in the order of their names. Folders for which
/// `leaves_out` is true and data folders of a farm are left out; with `ignore_files` also what the files `.gitignore`
/// and `.forebayignore` in it match.
pub fn walk(
    folder: &Path,
    ignore_files: bool,
    leaves_out: impl Fn(&Path) -> bool + Send + Sync + 'static,
) -> Walk {
    let root = folder.to_owned();
    let mut walk = WalkBuilder::new(folder);
    walk.standard_filters(false).follow_links(false).sort_by_file_name(Ord::cmp);
    if ignore_files {
        walk.git_ignore(true).require_git(false).add_custom_ignore_filename(IGNORE_FILE);
    }
    walk.filter_entry(move |entry| {
        let path = entry.path();
        if path == root || !entry.file_type().is_some_and(|kind| kind.is_dir()) {
            return true;
        }
        !(path.join(FARM_DATA_MARK).is_file() || leaves_out(path))
    });
    walk.build()
}
