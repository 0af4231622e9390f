//! Reads files of an image whose layers are not mounted, as a command in it would.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fs::File,
    io::Read as _,
    os::{fd::OwnedFd, unix::ffi::OsStringExt as _},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use crate::{
    error::{ImageError, shown},
    place::OPAQUE_ATTRIBUTE,
};

/// Maximum number of links on a path, as in Linux.
const LINKS_MAX: usize = 40;

/// The files of an image in the folders of its layers.
#[derive(Debug)]
pub(crate) struct ImageTree {
    /// The open folders, the topmost first.
    layers: Vec<OwnedFd>,
}

/// What a name of an image means.
enum Entry {
    /// A folder, with the numbers of the layers that have a part of it.
    Folder(Vec<usize>),
    /// A link to this path.
    Link(PathBuf),
    /// A file of the layer with this number.
    File(usize),
    Missing,
}

/// A folder on a path, and the layers that have a part of it.
#[derive(Clone)]
struct Step {
    path: PathBuf,
    layers: Vec<usize>,
}

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

fn failed(path: &Path) -> impl FnOnce(Errno) -> ImageError {
    move |error| ImageError::file(format!("reading {} of an image", shown(path)), error.into())
}

impl ImageTree {
    /// Opens the folders of an image, the topmost first.
    pub(crate) fn open(folders: &[PathBuf]) -> Result<Self, ImageError> {
        let open = |folder: &PathBuf| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(CWD, folder, flags, Mode::empty()).map_err(failed(folder))
        };
        Ok(Self { layers: folders.iter().map(open).collect::<Result<_, _>>()? })
    }

    /// The content of a file, of at most `most` bytes; `None` if the image has no such file. Links are followed inside only.
    pub(crate) fn read(&self, path: &str, most: u64) -> Result<Option<Vec<u8>>, ImageError> {
        let Some((layer, found)) = self.find(Path::new(path))? else { return Ok(None) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Some(layer) = self.layers.get(layer) else { return Ok(None) };
        let file = rustix::fs::openat2(layer, &found, flags, Mode::empty(), beneath());
        let file = File::from(file.map_err(failed(&found))?);
        let mut content = Vec::new();
        let reading = file.take(most.saturating_add(1)).read_to_end(&mut content);
        reading.map_err(|error| ImageError::file(format!("reading {} of an image", shown(&found)), error))?;
        if content.len() as u64 > most {
            return Err(ImageError::Invalid(format!("its file /{path} is larger than {most} bytes")));
        }
        Ok(Some(content))
    }

    /// The layer of a file, and its path without links.
    fn find(&self, path: &Path) -> Result<Option<(usize, PathBuf)>, ImageError> {
        let top = Step { path: PathBuf::new(), layers: (0..self.layers.len()).collect() };
        let mut above = vec![top.clone()];
        let mut left: VecDeque<OsString> = names(path);
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            if name == ".." {
                if above.len() > 1 {
                    above.pop();
                }
                continue;
            }
            let Some(folder) = above.last() else { return Ok(None) };
            let path = folder.path.join(&name);
            match self.entry(&folder.layers, &path)? {
                Entry::Folder(layers) => above.push(Step { path, layers }),
                Entry::File(layer) if left.is_empty() => return Ok(Some((layer, path))),
                Entry::File(_) | Entry::Missing => return Ok(None),
                Entry::Link(target) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Ok(None);
                    }
                    if target.is_absolute() {
                        above = vec![top.clone()];
                    }
                    for name in names(&target).into_iter().rev() {
                        left.push_front(name);
                    }
                }
            }
        }
        Ok(None)
    }

    /// What is visible at a path whose folders are all in `layers`.
    fn entry(&self, layers: &[usize], path: &Path) -> Result<Entry, ImageError> {
        let mut parts = Vec::new();
        for (number, layer) in layers.iter().filter_map(|number| Some((*number, self.layers.get(*number)?))) {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = match rustix::fs::openat2(layer, path, flags, Mode::empty(), beneath()) {
                Err(Errno::NOENT) => continue,
                found => found.map_err(failed(path))?,
            };
            let kind = FileType::from_raw_mode(rustix::fs::fstat(&found).map_err(failed(path))?.st_mode);
            if kind == FileType::Directory {
                parts.push(number);
                if is_opaque(layer, path)? {
                    break;
                }
                continue;
            }
            // It hides what is below it, and is hidden by a folder above it.
            if !parts.is_empty() {
                break;
            }
            return Ok(match kind {
                FileType::RegularFile => Entry::File(number),
                FileType::Symlink => {
                    let target = rustix::fs::readlinkat(&found, "", Vec::new()).map_err(failed(path))?;
                    Entry::Link(OsString::from_vec(target.into_bytes()).into())
                }
                // A device without number says that lower layers are hidden. Layers have no other files.
                FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Directory
                | FileType::Fifo
                | FileType::Socket
                | FileType::Unknown => Entry::Missing,
            });
        }
        Ok(if parts.is_empty() { Entry::Missing } else { Entry::Folder(parts) })
    }
}

/// Whether nothing of a folder in lower layers is visible.
fn is_opaque(layer: &OwnedFd, folder: &Path) -> Result<bool, ImageError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(layer, folder, flags, Mode::empty(), beneath());
    let opened = opened.map_err(failed(folder))?;
    let mut value = [0; 1];
    match rustix::fs::fgetxattr(&opened, OPAQUE_ATTRIBUTE, &mut value) {
        Ok(_) => Ok(value == *b"y"),
        // Layers that are not mounted as overlay have no such attributes, whatever the file system.
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(error) => Err(failed(folder)(error)),
    }
}

/// The names on a path, with `..`.
fn names(path: &Path) -> VecDeque<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// Layers with these files, the topmost first.
    fn layers(files: &[&[(&str, &str)]]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let place = tempfile::tempdir().unwrap();
        let folders: Vec<PathBuf> = (0..files.len()).map(|n| place.path().join(n.to_string())).collect();
        for (folder, files) in folders.iter().zip(files) {
            fs::create_dir(folder).unwrap();
            for (path, content) in *files {
                let path = folder.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                match content.strip_prefix("-> ") {
                    Some(target) => symlink(target, path).unwrap(),
                    None => fs::write(path, content).unwrap(),
                }
            }
        }
        (place, folders)
    }

    fn read(folders: &[PathBuf], path: &str) -> Option<String> {
        let content = ImageTree::open(folders).unwrap().read(path, 100).unwrap();
        content.map(|content| String::from_utf8(content).unwrap())
    }

    #[test]
    fn the_topmost_file_is_read() {
        let top: &[(&str, &str)] = &[("etc/hosts", "h"), ("usr", "no folder")];
        let middle: &[(&str, &str)] = &[("etc/passwd", "two"), ("usr/a", "hidden")];
        let (_place, all) =
            layers(&[top, middle, &[("etc/passwd", "one"), ("etc/group", "g"), ("etc/b", "x")]]);
        assert_eq!(read(&all, "etc/passwd").as_deref(), Some("two"));
        assert_eq!(read(&all, "etc/group").as_deref(), Some("g"));
        for missing in ["etc/none", "usr/a", "etc", "etc/passwd/x", "..", ""] {
            assert_eq!(read(&all, missing), None, "{missing}");
        }
    }

    #[test]
    fn what_a_layer_hides_is_not_read() {
        use nix::sys::stat::{Mode as Bits, SFlag, mknod};
        let (_place, all) = layers(&[&[("var/x", "")], &[("etc/passwd", "one"), ("var/passwd", "one")]]);
        fs::create_dir(all[0].join("etc")).unwrap();
        let made = mknod(&all[0].join("etc/passwd"), SFlag::S_IFCHR, Bits::empty(), 0);
        if made.is_ok() {
            assert_eq!(read(&all, "etc/passwd"), None);
        }
        assert_eq!(read(&all, "var/passwd").as_deref(), Some("one"));
        let flags = rustix::fs::XattrFlags::empty();
        if rustix::fs::setxattr(all[0].join("var"), OPAQUE_ATTRIBUTE, b"y", flags).is_ok() {
            assert_eq!(read(&all, "var/passwd"), None);
        }
    }

    #[test]
    fn links_lead_through_the_image_and_never_out_of_it() {
        let outside = tempfile::NamedTempFile::new().unwrap();
        fs::write(outside.path(), "outside").unwrap();
        let to_outside = format!("-> {}", outside.path().display());
        let up = format!("-> ../../../../../..{}", outside.path().display());
        let top: &[(&str, &str)] = &[
            ("etc/passwd", "-> /usr/share/passwd"),
            ("etc/up", "-> ../etc/../../usr/./share/passwd"),
            ("usr/share", "-> ../nix"),
            ("etc/out", &to_outside),
            ("etc/climb", &up),
            ("etc/loop", "-> loop"),
            ("etc/proc", "-> /proc/self/fd/0"),
        ];
        let (_place, all) = layers(&[top, &[("nix/passwd", "found")]]);
        for path in ["etc/passwd", "etc/up", "usr/share/passwd"] {
            assert_eq!(read(&all, path).as_deref(), Some("found"), "{path}");
        }
        for path in ["etc/out", "etc/climb", "etc/loop", "etc/proc"] {
            assert_eq!(read(&all, path), None, "{path}");
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let (_place, all) = layers(&[&[("etc/passwd", &"x".repeat(101))]]);
        let error = ImageTree::open(&all).unwrap().read("etc/passwd", 100).unwrap_err().to_string();
        assert!(error.contains("/etc/passwd") && error.contains("100 bytes"), "{error}");
    }
}
