//! The operator's files with secrets of builds: `GROUP/NAME` in the folder of the setting `secrets_folder`. What others could
//! read or change is not a secret, and is not offered.

use std::{
    collections::BTreeMap,
    fs::{self, Metadata},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use model::{Group, SecretName, secrets_property};
use nix::unistd::geteuid;
use secrets::{BadSecret, SECRET_BYTES_MAX, Secret};
use service::ServiceError;

use disk::Confined;

/// Rights of others to read, write or execute a file.
const OTHERS: u32 = 0o077;
/// Rights of others to change a folder.
const OTHERS_CHANGE: u32 = 0o022;

/// The folder with secrets.
#[derive(Clone)]
pub(crate) struct SecretStore {
    folder: PathBuf,
}

/// Why a secret cannot be given to a build, without its value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoSecret {
    #[error("it is not there")]
    Missing,
    #[error("cannot read it: {0}")]
    Unreadable(io::Error),
    #[error("it belongs to another user than root and the worker")]
    ForeignOwner,
    #[error(
        "others may read or change it: expected mode 0400 or 0600, in folders that only their owner may change"
    )]
    OpenToOthers,
    #[error("{0}")]
    Bad(#[from] BadSecret),
}

/// The secrets in the folder.
#[derive(Debug, Default)]
pub(crate) struct FoundSecrets {
    /// Names of those that builds may have, by the property of their group.
    pub(crate) offers: BTreeMap<String, Vec<String>>,
    /// Files and folders that cannot be used, each with the reason.
    pub(crate) unusable: Vec<String>,
}

impl SecretStore {
    /// Opens the folder for a worker whose builds may have the contexts in `context_paths`.
    ///
    /// # Errors
    ///
    /// Fails if others could change it, or if builds could read it.
    pub(crate) fn open(folder: &Path, context_paths: &[PathBuf]) -> Result<Self, ServiceError> {
        let refused = |why: String| {
            ServiceError::failed(
                "opening the secrets of builds (secrets_folder)",
                format!("{}: {why}", folder.display()),
            )
        };
        let store = Self { folder: folder.to_owned() };
        let path = folder.canonicalize().map_err(|error| refused(error.to_string()))?;
        let opened = Confined::open(&path).map_err(|error| refused(error.to_string()))?;
        opened
            .metadata(Path::new("."))
            .map_err(NoSecret::Unreadable)
            .and_then(|metadata| check_owner(&metadata, OTHERS_CHANGE))
            .map_err(|why| refused(why.to_string()))?;
        let is_open = |open: &&PathBuf| open.canonicalize().is_ok_and(|open| path.starts_with(open));
        match context_paths.iter().find(is_open) {
            Some(open) => {
                let open = open.display();
                Err(refused(format!("it is in {open}, from which builds may copy files (context_paths)")))
            }
            None => Ok(store),
        }
    }

    /// The path of the folder, which no build may read.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Looks for all secrets, and reads each: those that cannot be given to builds are not offered.
    pub(crate) fn find(&self) -> io::Result<FoundSecrets> {
        let mut found = FoundSecrets::default();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(group) = name.to_str().and_then(|name| name.parse::<Group>().ok()) else {
                found.unusable.push(format!("{}: its name is not one of a group", entry.path().display()));
                continue;
            };
            match fs::read_dir(entry.path()) {
                Ok(entries) => self.find_in(&group, entries, &mut found)?,
                Err(error) => found.unusable.push(format!("{}: {error}", entry.path().display())),
            }
        }
        Ok(found)
    }

    fn find_in(&self, group: &Group, entries: fs::ReadDir, found: &mut FoundSecrets) -> io::Result<()> {
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str().and_then(|name| name.parse::<SecretName>().ok()) else {
                found.unusable.push(format!("{}: its name cannot be asked for", entry.path().display()));
                continue;
            };
            match self.load(group, &name) {
                Ok(_) => names.push(name.to_string()),
                // It was removed since the folder was read.
                Err(NoSecret::Missing) => {}
                Err(why) => found.unusable.push(format!("{}: {why}", entry.path().display())),
            }
        }
        names.sort();
        if !names.is_empty() {
            found.offers.insert(secrets_property(group), names);
        }
        Ok(())
    }

    /// Reads a secret. No part of its path below the folder may be a link.
    pub(crate) fn load(&self, group: &Group, name: &SecretName) -> Result<Secret, NoSecret> {
        let folder = Confined::open(&self.folder.canonicalize().map_err(unread)?).map_err(unread)?;
        let group = Path::new(group.as_str());
        check_owner(&folder.metadata(group).map_err(unread)?, OTHERS_CHANGE)?;
        let mut file = folder.file(&group.join(name.as_str())).map_err(unread)?;
        check_owner(&file.metadata().map_err(unread)?, OTHERS)?;
        // One more byte shows that it is too large.
        let mut value = Vec::with_capacity(SECRET_BYTES_MAX + 1);
        file.by_ref().take(SECRET_BYTES_MAX as u64 + 1).read_to_end(&mut value).map_err(unread)?;
        Ok(Secret::new(value)?)
    }
}

fn unread(error: io::Error) -> NoSecret {
    if error.kind() == io::ErrorKind::NotFound { NoSecret::Missing } else { NoSecret::Unreadable(error) }
}

/// Checks that only the worker and root decide about a file or folder, and that others do not have these rights.
fn check_owner(metadata: &Metadata, rights: u32) -> Result<(), NoSecret> {
    if metadata.uid() != 0 && metadata.uid() != geteuid().as_raw() {
        return Err(NoSecret::ForeignOwner);
    }
    if metadata.mode() & rights != 0 { Err(NoSecret::OpenToOthers) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn put(folder: &Path, path: &str, value: &[u8], mode: u32) {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::set_permissions(path.parent().unwrap(), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(&path, value).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn only_what_others_cannot_reach_is_offered() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().canonicalize().unwrap();
        let store = SecretStore::open(&folder, &[]).unwrap();
        for (path, value, mode) in [
            ("g/plain", "hunter22", 0o600),
            ("g/read-only", "hunter22", 0o400),
            ("g/open", "hunter22", 0o640),
            ("g/short", "abc", 0o600),
            ("g/a.b", "hunter22", 0o600),
            ("h/other", "hunter22", 0o600),
            ("open/plain", "hunter22", 0o600),
        ] {
            put(&folder, path, value.as_bytes(), mode);
        }
        put(&folder, "g/large", &vec![b'x'; SECRET_BYTES_MAX + 1], 0o600);
        symlink(folder.join("g/plain"), folder.join("g/link")).unwrap();
        symlink(folder.join("h"), folder.join("linked")).unwrap();
        nix::unistd::mkfifo(&folder.join("g/pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        fs::set_permissions(folder.join("open"), fs::Permissions::from_mode(0o777)).unwrap();
        let found = store.find().unwrap();
        let offers: Vec<String> =
            found.offers.iter().map(|(group, names)| format!("{group}: {}", names.join(" "))).collect();
        assert_eq!(offers, ["secrets/g: plain read-only", "secrets/h: other"]);
        let all = found.unusable.join("\n");
        for name in
            ["g/open", "g/short", "g/a.b", "g/large", "g/link", "g/pipe", "linked/other", "open/plain"]
        {
            assert!(all.contains(&format!("{name}: ")), "{name}: {all}");
        }
        assert!(found.unusable.len() == 8 && !all.contains("hunter"), "{all}");
        let load = |group: &str, name: &str| store.load(&group.parse().unwrap(), &name.parse().unwrap());
        assert_eq!(load("g", "plain").ok().unwrap().reveal(), b"hunter22");
        assert!(matches!(load("h", "plain"), Err(NoSecret::Missing)));
        assert!(matches!(load("none", "plain"), Err(NoSecret::Missing)));
    }

    #[test]
    fn a_folder_that_builds_or_others_could_use_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("secrets");
        let refused =
            |open: &[PathBuf]| SecretStore::open(&folder, open).err().map(|why| telemetry::error_chain(&why));
        assert!(refused(&[]).unwrap().contains("No such file"));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(refused(&[place.path().join("other")]), None);
        for open in [place.path().to_owned(), folder.clone()] {
            assert!(refused(&[open]).unwrap().contains("context_paths"));
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&[]).unwrap().contains("others may read or change it"));
    }
}
