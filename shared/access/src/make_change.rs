//! Changes of a description with new keys in files.

use std::path::PathBuf;

use credentials::{Seed, SeedFault};

use crate::{Access, Change, ChangeError, SeedFolder, Slot, Who};

impl SeedFolder {
    /// Makes a change of a description, and writes the seed of a new key before the description has it; returns the paths
    /// of new keys, which a new tenant has where users have JWTs. A seed that is there already, from a process that was killed between both, is used.
    ///
    /// # Errors
    ///
    /// Fails if the change is not possible, or if a seed cannot be read or written.
    pub fn change(&self, access: &Access, change: &Change) -> Result<(Access, Vec<PathBuf>), ChangeError> {
        let mut new = None;
        let new_key = |who: &Who, slot: Slot| -> Result<Seed, SeedFault> {
            if let Some(seed) = self.read(who, slot)? {
                return Ok(seed);
            }
            let seed = Seed::generate()?;
            new = Some((who.clone(), slot, seed.clone()));
            Ok(seed)
        };
        let changed = access.changed(change, new_key)?;
        let (changed, mut written) = self.with_accounts(&changed)?;
        let seed = new.map(|(who, slot, seed)| self.write(&who, slot, &seed)).transpose()?;
        written.extend(seed);
        Ok((changed, written))
    }
}
