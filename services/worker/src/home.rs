//! Clears the home folder of a reused workspace: only caches stay. What one build writes into `~/.gitconfig`,
//! `~/.npmrc` or `~/.netrc` holds for that build alone.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use disk::Confined;

/// Caches of tools, and the data that tools find their servers by.
const CACHES: [&str; 14] = [
    ".cache",
    ".cargo/git",
    ".cargo/registry",
    ".ccache",
    ".gradle/caches",
    ".gradle/daemon",
    ".gradle/wrapper",
    ".ivy2/cache",
    ".m2/repository",
    ".m2/wrapper",
    ".npm/_cacache",
    ".nuget/packages",
    ".yarn/berry/cache",
    "go/pkg",
];

/// Removes everything in `home` except the caches, and creates the folder if it is missing.
pub(crate) fn clear(home: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(home).is_ok_and(|meta| meta.is_dir()) {
        // If a file stays there, the creation of the folder fails.
        let _ = fs::remove_file(home);
        return fs::create_dir_all(home);
    }
    let root = Confined::at(home)?;
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        // Not by path: what the last build left may replace the folder by a link meanwhile.
        let opened = root.folder(&folder)?;
        for entry in opened.entries()? {
            let entry = entry?;
            let (path, is_folder) = (folder.join(entry.file_name()), entry.file_type()?.is_dir());
            if is_folder && CACHES.iter().any(|cache| Path::new(cache) == path) {
                continue;
            }
            if is_folder && CACHES.iter().any(|cache| Path::new(cache).starts_with(&path)) {
                folders.push(path);
            } else if is_folder {
                disk::remove_tree(&entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_caches_stay() {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().join("home");
        clear(&home).unwrap();
        let outside = place.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        let stays = [".cache/x/y", ".gradle/daemon/8/registry.bin", ".m2/repository/a.jar", "go/pkg/mod/z"];
        let goes = [
            ".gitconfig",
            ".config/git/config",
            ".m2/settings.xml",
            ".gradle/init.d/x",
            "go/bin/go",
            "a/.cache/b",
        ];
        for path in stays.iter().chain(&goes) {
            fs::create_dir_all(home.join(path).parent().unwrap()).unwrap();
            fs::write(home.join(path), "").unwrap();
        }
        symlink(&outside, home.join(".ccache")).unwrap();
        symlink(&outside, home.join(".cargo")).unwrap();
        clear(&home).unwrap();
        assert!(stays.iter().all(|path| home.join(path).exists()));
        assert!(
            goes.iter()
                .chain(&[".ccache", ".cargo"])
                .all(|path| fs::symlink_metadata(home.join(path)).is_err())
        );
        assert!(outside.join("kept").exists());
        // A link in place of the folder is not followed.
        fs::remove_dir_all(&home).unwrap();
        symlink(&outside, &home).unwrap();
        clear(&home).unwrap();
        assert!(fs::read_dir(&home).unwrap().next().is_none() && outside.join("kept").exists());
    }
}
