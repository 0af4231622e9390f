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
        let name = match who {
            Who::Tenant(tenant) => tenant.to_string(),
            // No tenant has the name of a role.
            Who::User(user) => user.bus_user().to_string(),
            Who::Service(service) => service.bus_user().to_string(),
        };
        let end = match slot {
            Slot::Current => "seed",
            Slot::Next => "next.seed",
        };
        self.0.join(format!("{name}.{end}"))
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
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source| SeedFault::File { what, path, source }
        };
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        made.map_err(failed("create", &self.0))?;
        // Complete or absent, also after a power cut.
        let draft = path.with_extension("draft");
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft);
        let mut file = file.map_err(failed("write", &draft))?;
        let written = writeln!(file, "{}", seed.reveal()).and_then(|()| file.sync_all());
        written.and_then(|()| fs::hard_link(&draft, &path)).map_err(failed("write", &path))?;
        fs::remove_file(&draft).map_err(failed("remove", &draft))?;
        Ok(path)
    }

    /// Removes the seeds of `who`, so that none of them is used for a later user of the same name.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be removed.
    pub fn remove(&self, who: &Who) -> Result<(), SeedFault> {
        for slot in [Slot::Current, Slot::Next] {
            let path = self.path(who, slot);
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(SeedFault::File { what: "remove", path, source }),
            }
        }
        Ok(())
    }

    /// Puts the seed that follows in a rotation in place of the one in use.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be renamed.
    pub fn replace(&self, who: &Who) -> Result<(), SeedFault> {
        let (next, current) = (self.path(who, Slot::Next), self.path(who, Slot::Current));
        match fs::rename(&next, &current) {
            Ok(()) => Ok(()),
            // An earlier call has done so, or the seeds are elsewhere.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(SeedFault::File { what: "rename", path: next, source }),
        }
    }
}

impl Access {
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
