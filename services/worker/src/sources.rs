//! What builds may name as their sources, by the settings of this worker.

use std::{
    io,
    path::{Path, PathBuf},
};

use download::Reach;
use policy::fetch::is_below;
use settings::ContextSettings;

/// Sources that a build may not have, or that are missing: the text for the user.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) String);

/// The folders and hosts that sources may come from.
pub(crate) struct Sources {
    folders: Vec<PathBuf>,
    /// The worker's data folder, in which no build's sources are.
    data: PathBuf,
    /// The folder with secrets of builds, if there is one.
    secrets: Option<PathBuf>,
    /// Hosts that sources may be fetched from.
    pub(crate) reach: Reach,
}

impl Sources {
    /// The sources that the settings of a worker with this data folder allow.
    pub(crate) fn new(settings: &ContextSettings, data: &Path, secrets: Option<&Path>) -> Self {
        let reach = Reach::within(&settings.fetch_hosts);
        let (folders, secrets) = (settings.context_paths.clone(), secrets.map(Path::to_owned));
        Self { folders, data: data.to_owned(), secrets, reach }
    }

    /// Whether a build may have any sources of this machine.
    pub(crate) fn has_folders(&self) -> bool {
        !self.folders.is_empty()
    }

    /// Resolves a path of this machine that a build asks for. The result contains no links; it must be opened without
    /// following any, because they may change.
    pub(crate) fn local(&self, path: &Path) -> Result<PathBuf, Refusal> {
        // Resolved each time: a folder may be mounted, or its links changed, while the worker runs.
        let folders: Vec<PathBuf> =
            self.folders.iter().filter_map(|folder| folder.canonicalize().ok()).collect();
        let found = path.canonicalize();
        // Whether a path outside of the folders exists is not for builds to know.
        let known = match &found {
            Ok(found) => Some(found.clone()),
            Err(_) => path.ancestors().find_map(|above| above.canonicalize().ok()),
        };
        let known = known.filter(|known| path.is_absolute() && is_below(known, &folders));
        let Some(known) = known else {
            return Err(Refusal(format!(
                "builds may not read {} on this worker: the setting context_paths does not name a folder that contains it",
                path.display()
            )));
        };
        if self.data.canonicalize().is_ok_and(|data| known.starts_with(data)) {
            return Err(Refusal(format!(
                "builds may not read {}: it is in the worker's data folder (the setting data), which context_paths does \
                 not open",
                path.display()
            )));
        }
        let secrets = self.secrets.as_ref().and_then(|secrets| secrets.canonicalize().ok());
        // A folder around it would be copied with it.
        if secrets.is_some_and(|secrets| known.starts_with(&secrets) || secrets.starts_with(&known)) {
            return Err(Refusal(format!("builds may not read {} on this worker", path.display())));
        }
        found.map_err(|error| missing(path, &error))
    }
}

fn missing(path: &Path, error: &io::Error) -> Refusal {
    let path = path.display();
    if error.kind() == io::ErrorKind::NotFound {
        return Refusal(format!("{path} not found on this worker"));
    }
    Refusal(format!("cannot read {path} on this worker: {error}"))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn c2_only_what_is_really_in_a_folder_of_the_settings_is_read() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for folder in ["open/a", "open/data/w", "open/keys/secrets", "openly", "secret"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::write(at("secret/key"), "x").unwrap();
        symlink(at("secret"), at("open/link")).unwrap();
        symlink(at("open"), at("name")).unwrap();
        let of = |paths: &[&str]| {
            let context_paths = paths.iter().map(|path| at(path)).collect();
            let settings = ContextSettings { context_paths, fetch_hosts: Vec::new() };
            Sources::new(&settings, &at("open/data"), None)
        };
        let sources = of(&["name"]);
        let root = place.path().canonicalize().unwrap();
        assert_eq!(sources.local(&at("open")), Ok(root.join("open")));
        assert_eq!(sources.local(&at("name/../open/a")), Ok(root.join("open/a")));
        let refused = |path: &Path| sources.local(path).unwrap_err().0;
        for path in [
            "openly",
            "secret",
            "secret/none",
            "open/link",
            "open/link/key",
            "open/../secret/key",
            "",
            "none",
        ] {
            let why = refused(&at(path));
            assert!(why.contains("context_paths") && why.contains(path), "{why}");
        }
        for path in ["/", "/root", "/etc/passwd", "relative", "/proc/self/root"] {
            assert!(refused(path.as_ref()).contains("context_paths"), "{path}");
        }
        for path in ["open/data", "open/data/w", "open/data/none"] {
            assert!(refused(&at(path)).contains("data folder"), "{path}");
        }
        assert!(refused(&at("open/none")).contains("not found on this worker"));
        let secrets = Sources { secrets: Some(at("open/keys/secrets")), ..of(&["open"]) };
        for path in ["open", "open/keys", "open/keys/secrets", "open/keys/secrets/none"] {
            assert!(secrets.local(&at(path)).is_err_and(|why| why.0.contains("may not read")), "{path}");
        }
        assert!(secrets.local(&at("open/a")).is_ok());
        assert!(of(&[]).local(&at("open")).unwrap_err().0.contains("context_paths"));
    }
}
