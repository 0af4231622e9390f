//! The files of seeds: one for each user, readable by its owner only.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use credentials::{PublicKey, Seed, SeedFault};

use crate::{Access, Who};

/// A folder with the seeds of users.
#[derive(Debug, Clone)]
pub struct SeedFolder(PathBuf);

/// Which key of a user: the one in use, or the one that follows it in a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    Current,
    Next,
}

impl SeedFolder {
    /// The folder at `path`, which need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The file of a seed of `who`.
    pub fn path(&self, who: &Who, slot: Slot) -> PathBuf {
        self.file(who, slot, "seed")
    }

    /// The file of a seed of `who` with a JWT.
    pub fn token_path(&self, who: &Who, slot: Slot) -> PathBuf {
        self.file(who, slot, "creds")
    }

    fn file(&self, who: &Who, slot: Slot, end: &str) -> PathBuf {
        let name = match who {
            Who::Tenant(tenant) => tenant.to_string(),
            // No tenant has the name of a role.
            Who::User(user) => user.bus_user().to_string(),
            Who::Service(service) => service.bus_user().to_string(),
        };
        let next = match slot {
            Slot::Current => "",
            Slot::Next => "next.",
        };
        self.0.join(format!("{name}.{next}{end}"))
    }

    /// The folder of all files.
    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    /// Reads a seed, if its file exists.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, has something else in it, or can be read by others.
    pub fn read(&self, who: &Who, slot: Slot) -> Result<Option<Seed>, SeedFault> {
        Seed::read(&self.path(who, slot))
    }

    /// Writes a seed into a new file. An existing file is not replaced.
    ///
    /// # Errors
    ///
    /// Fails if the file exists or cannot be written.
    pub fn write(&self, who: &Who, slot: Slot, seed: &Seed) -> Result<PathBuf, SeedFault> {
        let path = self.path(who, slot);
        self.write_new(&path, &format!("{}\n", seed.reveal()))?;
        Ok(path)
    }

    /// Writes a secret into a new file of this folder. An existing file is not replaced.
    pub(crate) fn write_new(&self, path: &Path, text: &str) -> Result<(), SeedFault> {
        let draft = self.draft(path, text)?;
        fs::hard_link(&draft, path).map_err(failed("write", path))?;
        fs::remove_file(&draft).map_err(failed("remove", &draft))
    }

    /// Writes a secret into a file of this folder, in place of what it has.
    pub(crate) fn replace_private(&self, path: &Path, text: &str) -> Result<(), SeedFault> {
        let draft = self.draft(path, text)?;
        fs::rename(&draft, path).map_err(failed("write", path))
    }

    /// Complete or absent, also after a power cut.
    fn draft(&self, path: &Path, text: &str) -> Result<PathBuf, SeedFault> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.map_err(failed("create", &self.0))?;
        let draft = path.with_extension("draft");
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft);
        let mut file = file.map_err(failed("write", &draft))?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(failed("write", &draft))?;
        Ok(draft)
    }

    /// Removes the seeds and JWTs of `who`, so that none of them is used for a later user of the same name.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be removed.
    pub fn remove(&self, who: &Who) -> Result<(), SeedFault> {
        for slot in [Slot::Current, Slot::Next] {
            remove_file(self.path(who, slot))?;
            remove_file(self.token_path(who, slot))?;
        }
        Ok(())
    }

    /// Puts the seed that follows in a rotation in place of the one in use, with its JWT.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be renamed.
    pub fn replace(&self, who: &Who) -> Result<(), SeedFault> {
        for file in [Self::path, Self::token_path] {
            let (next, current) = (file(self, who, Slot::Next), file(self, who, Slot::Current));
            // If it is not there, an earlier call has done so, or it is elsewhere.
            rename(next, &current)?;
        }
        Ok(())
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SeedFault {
    let path = path.to_owned();
    move |source| SeedFault::File { what, path, source }
}

/// Puts a file, which need not exist, in place of another.
pub(crate) fn rename(from: PathBuf, to: &Path) -> Result<(), SeedFault> {
    match fs::rename(&from, to) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(SeedFault::File { what: "rename", path: from, source }),
    }
}

/// Removes a file, which need not exist.
pub(crate) fn remove_file(path: PathBuf) -> Result<(), SeedFault> {
    match fs::remove_file(&path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(SeedFault::File { what: "remove", path, source }),
    }
}

impl Access {
    /// The file with which a user connects: that of its seed, or the one that has its JWT too.
    pub fn key_file(&self, seeds: &SeedFolder, who: &Who, slot: Slot) -> PathBuf {
        if self.jwt().is_some() { seeds.token_path(who, slot) } else { seeds.path(who, slot) }
    }

    /// All users and services that have keys, with these.
    pub fn key_owners(&self) -> Vec<(Who, Vec<PublicKey>)> {
        let services = self.services().iter().map(|(name, keys)| {
            (Who::Service(name.clone()), keys.iter().map(|key| key.public.clone()).collect())
        });
        let users = self
            .users()
            .into_iter()
            .map(|user| (Who::User(user.name.clone()), user.keys.iter().cloned().collect()));
        services.chain(users).collect()
    }
}
