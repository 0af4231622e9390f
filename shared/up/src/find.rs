//! Finds the servers that `forebay up` starts.

use std::{
    env,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::error::UpError;

/// An external program that `up` starts.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Environment variable with the path of the program.
    pub(crate) variable: &'static str,
    /// Possible names of its file.
    pub(crate) files: &'static [&'static str],
    /// Advice for a missing or outdated program.
    pub(crate) remedy: &'static str,
}

/// Finds the program: in its variable, then in `.tools/bin` in the working directory or above the
/// executable, then in `PATH`.
pub(crate) fn find(program: &Program) -> Result<PathBuf, UpError> {
    if let Some(named) = env::var_os(program.variable).filter(|value| !value.is_empty()) {
        return Ok(named.into());
    }
    let mut places = Vec::new();
    places.extend(env::current_dir().ok().map(|here| here.join(".tools/bin")));
    if let Ok(executable) = env::current_exe() {
        places.extend(executable.ancestors().skip(1).map(|above| above.join(".tools/bin")));
    }
    places.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let missing = UpError::NotInstalled { name: program.name, remedy: program.remedy };
    find_in(&places, program.files).ok_or(missing)
}

fn find_in(places: &[PathBuf], files: &[&str]) -> Option<PathBuf> {
    places.iter().flat_map(|place| files.iter().map(|file| place.join(file))).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Checks that `PROGRAM --version` reports at least version `wanted` (`MAJOR.MINOR`).
pub(crate) fn check_version(program: &Program, path: &Path, wanted: &'static str) -> Result<(), UpError> {
    let answer = Command::new(path).arg("--version").stdin(Stdio::null()).output();
    let answer = answer.map_err(|source| UpError::Folder { path: path.to_owned(), source })?;
    let text = String::from_utf8_lossy(&answer.stdout);
    let enough = match (version_in(&text), version_in(wanted)) {
        (Some(found), Some(wanted)) => found >= wanted,
        (Some(_) | None, _) => false,
    };
    if enough {
        return Ok(());
    }
    let found = text.lines().next().unwrap_or("unknown").trim().to_owned();
    Err(UpError::TooOld { program: path.to_owned(), found, wanted, remedy: program.remedy })
}

/// The first `MAJOR.MINOR` in a text.
fn version_in(text: &str) -> Option<(u32, u32)> {
    let mut words = text.split(|c: char| !(c.is_ascii_digit() || c == '.'));
    words.find_map(|word| {
        let mut parts = word.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::{find_in, version_in};

    #[test]
    fn versions() {
        assert_eq!(version_in("nats-server: v2.15.1"), Some((2, 15)));
        assert_eq!(version_in("Redis server v=7.0.15 sha=00000000:0"), Some((7, 0)));
        assert_eq!(version_in("2.12"), Some((2, 12)));
        assert_eq!(version_in("none at all."), None);
        assert!(version_in("v2.9.25") < version_in("v2.12.0"));
    }

    #[test]
    fn the_first_place_wins() {
        let places = ["/nowhere".into(), "/usr/bin".into(), "/bin".into()];
        assert_eq!(
            find_in(&places, &["no-such-program", "sh"]).unwrap(),
            std::path::Path::new("/usr/bin/sh")
        );
        assert!(find_in(&places, &["no-such-program"]).is_none());
    }
}
