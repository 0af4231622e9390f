//! Starts the process of a slot in an image that may have no libraries, or others.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of an image that the libraries are visible in.
pub(crate) const INSIDE: &str = "/.forebay";

/// The libraries of this program, which is also that of a slot: what the loader has mapped of them.
fn libraries() -> Vec<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let of_line = |line: &str| {
        let path = Path::new(line.get(line.find('/')?..)?);
        let name = path.file_name()?.to_str()?;
        // With and without a version after it.
        format!("{name}.").contains(".so.").then(|| path.to_owned())
    };
    let mut found: Vec<PathBuf> = maps.lines().filter_map(of_line).collect();
    found.sort();
    found.dedup();
    found
}

fn is_loader(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("ld-"))
}

/// Makes the libraries visible, and returns the command line by which a program is started with them;
/// it is empty for a program without libraries.
pub(crate) fn put_libraries(call: &mut Vec<OsString>) -> Vec<OsString> {
    let all = libraries();
    let Some(loader) = all.iter().find(|path| is_loader(path)).and_then(|path| path.file_name()) else {
        return Vec::new();
    };
    call.extend(["--tmpfs".into(), INSIDE.into()]);
    for path in &all {
        if let Some(name) = path.file_name() {
            call.extend(["--ro-bind".into(), path.into(), Path::new(INSIDE).join(name).into()]);
        }
    }
    call.extend(["--remount-ro".into(), INSIDE.into()]);
    vec![Path::new(INSIDE).join(loader).into(), "--library-path".into(), INSIDE.into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_libraries_names_all_of_them_and_its_loader() {
        let all = libraries();
        let has = |part: &str| all.iter().any(|path| path.to_string_lossy().contains(part));
        assert_eq!(all.iter().any(|path| is_loader(path)), has("libc"), "{all:?}");
        assert!(has("libc") || cfg!(target_feature = "crt-static"), "{all:?}");
        assert!(all.iter().all(|path| path.exists()), "{all:?}");
    }
}
