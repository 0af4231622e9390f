//! `@last`: the build that this user submitted last to a farm, kept in a file of the user on this machine.

use std::{
    io,
    path::{Path, PathBuf},
};

use model::{BuildKey, Digest};

use crate::failure::{FAILED, Failure};

/// What stands for the build that was submitted last.
pub(crate) const LAST: &str = "@last";

/// Where the last build of each farm is remembered.
#[derive(Debug)]
pub(crate) struct LastBuild {
    /// None: neither `XDG_STATE_HOME` nor `HOME` is set.
    file: Option<PathBuf>,
}

impl LastBuild {
    /// That of the farm that is known by `name`: its data folder, else its URL.
    pub(crate) fn of(name: &str) -> Self {
        let folder = |variable: &str| {
            std::env::var_os(variable).map(PathBuf::from).filter(|folder| folder.is_absolute())
        };
        let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
        Self { file: state.map(|state| state.join("forebay/last").join(file_name(name))) }
    }

    /// Remembers `key`. The build is queued already: an error here is not a failure of the command.
    pub(crate) fn remember(&self, key: &BuildKey) {
        if let Some(file) = &self.file
            && let Err(error) = write(file, key)
        {
            tracing::debug!(%error, file = %file.display(), "the last build is not remembered");
        }
    }

    /// The build that was remembered.
    pub(crate) fn read(&self) -> Result<BuildKey, Failure> {
        let Some(file) = &self.file else {
            return Err(Failure::usage(format!("{LAST} needs HOME or XDG_STATE_HOME to be set")));
        };
        match std::fs::read_to_string(file) {
            Ok(text) => text.trim().parse().map_err(|error: model::ParseIdError| {
                Failure::new(FAILED, format!("cannot read {}", file.display()), &error)
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure::usage(format!(
                "there is no {LAST}: from this machine you have submitted no build to this farm yet"
            ))),
            Err(error) => Err(Failure::new(FAILED, format!("cannot read {}", file.display()), &error)),
        }
    }
}

fn file_name(farm: &str) -> String {
    let digest = Digest::of(farm.as_bytes()).to_string();
    digest.trim_start_matches("sha256:").chars().take(16).collect()
}

/// In one step, so that of two submits at a time one stands there.
fn write(file: &Path, key: &BuildKey) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
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
