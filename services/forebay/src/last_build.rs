//! `@last`: the build that this user submitted last to a farm, remembered in a file of the user on this machine.

use std::{
    io,
    path::{Path, PathBuf},
};

use command_line::failure::{FAILED, Failure};
use invariant::Present as _;
use model::{BuildKey, Digest};

/// Name of the build that was submitted last.
pub(crate) const LAST: &str = "@last";

/// The file that remembers the last build of a farm.
#[derive(Debug)]
pub(crate) struct LastBuild {
    /// `None` if neither `XDG_STATE_HOME` nor `HOME` is set.
    file: Option<PathBuf>,
}

impl LastBuild {
    /// The file for the farm called `name`: its data folder, else its URL.
    pub(crate) fn of(name: &str) -> Self {
        let folder = |variable: &str| {
            std::env::var_os(variable).map(PathBuf::from).filter(|folder| folder.is_absolute())
        };
        let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
        Self { file: state.map(|state| state.join("forebay/last").join(file_name(name))) }
    }

    /// Remembers `key`. The build is already queued, so an error here is only logged.
    pub(crate) fn remember(&self, key: &BuildKey) {
        if let Some(file) = &self.file
            && let Err(error) = write(file, key)
        {
            tracing::debug!(%error, file = %file.display(), "cannot remember the last build");
        }
    }

    /// Reads the remembered build.
    pub(crate) fn read(&self) -> Result<BuildKey, Failure> {
        let Some(file) = &self.file else {
            return Err(Failure::usage(format!("{LAST} needs HOME or XDG_STATE_HOME to be set")));
        };
        match std::fs::read_to_string(file) {
            Ok(text) => text.trim().parse().map_err(|error: model::ParseIdError| {
                Failure::new(FAILED, format!("cannot read {}", file.display()), &error)
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure::usage(format!(
                "{LAST} not found: you have submitted no build to this farm from this machine yet"
            ))),
            Err(error) => Err(Failure::new(FAILED, format!("cannot read {}", file.display()), &error)),
        }
    }
}

fn file_name(farm: &str) -> String {
    let digest = Digest::of(farm.as_bytes()).to_string();
    digest.trim_start_matches("sha256:").chars().take(16).collect()
}

/// Replaces the file atomically, so that concurrent submits leave a whole key.
fn write(file: &Path, key: &BuildKey) -> io::Result<()> {
    let folder = file.parent().present_or(Path::new("."), "the folder of the last build");
    std::fs::create_dir_all(folder)?;
    let new = folder.join(format!(".{}-{}", std::process::id(), key.id));
    std::fs::write(&new, format!("{key}\n"))?;
    std::fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::{LastBuild, file_name};

    #[test]
    fn the_last_build_of_each_farm_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let of = |farm: &str| LastBuild { file: Some(folder.path().join("last").join(file_name(farm))) };
        assert!(of("a").read().unwrap_err().line().contains("no build"));
        for id in ["00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"] {
            of("a").remember(&format!("ci/{id}").parse().unwrap());
            assert_eq!(of("a").read().unwrap().id.to_string(), id);
        }
        assert!(of("b").read().is_err());
        assert!(LastBuild { file: None }.read().unwrap_err().line().contains("HOME"));
    }
}
