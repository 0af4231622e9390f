//! Reads all results of the store, and deletes those that a caller chooses.

use std::fs;

use model::{DigestFunction, Provenance};
use prost::Message as _;
use reapi::execution::ActionResult;

use crate::{
    Cas, CasError,
    layout::{Entry, Kind},
    local::{Local, content_of},
};

impl Cas {
    /// Reads all results of actions, of all zones and instances, and removes those whose provenance `is_selected`
    /// accepts. Returns the number of those. Does not extend the life of results. A result that is written meanwhile
    /// may be left out.
    ///
    /// With an object store behind it, copies of results in folders of other machines stay.
    ///
    /// # Errors
    ///
    /// Fails if results cannot be read or removed, or if another farm has them.
    pub async fn purge_actions(
        &self,
        mut is_selected: impl FnMut(Option<&Provenance>) -> bool + Send,
    ) -> Result<u64, CasError> {
        let mut removed = 0;
        if let Some(farm) = self.farm() {
            return Err(farm.no_removal());
        }
        for function in DigestFunction::ALL {
            for shard in 0..=u8::MAX {
                // An object store has all that the folder has.
                let results = match self.objects() {
                    Some(objects) => objects.results(function, shard).await?,
                    None => self.run_blocking(move |local| local.results(function, shard)).await?,
                };
                for (entry, content) in results {
                    let Ok(result) = ActionResult::decode(content.as_slice()) else { continue };
                    if is_selected(reapi::provenance::of(&result).as_ref()) {
                        removed += u64::from(self.remove_result(entry).await?);
                    }
                }
            }
        }
        Ok(removed)
    }
}

impl Local {
    /// The results in the folder of these first two digits.
    fn results(&self, function: DigestFunction, shard: u8) -> Result<Vec<(Entry, Vec<u8>)>, CasError> {
        let folder = self.layout().shards(Kind::Action, function).nth(usize::from(shard));
        let files = folder.into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        let mut results = Vec::new();
        for file in files {
            let name = file.file_name();
            let entry = name.to_str().and_then(|name| Entry::parse(Kind::Action, function, name));
            if let Some(entry) = entry
                && let Some((content, _)) = self.read_record(&entry)?
            {
                results.push((entry, content));
            }
        }
        Ok(results)
    }
}

impl crate::backing::objects::Objects {
    /// The results in the object store with these first two digits.
    async fn results(&self, function: DigestFunction, shard: u8) -> Result<Vec<(Entry, Vec<u8>)>, CasError> {
        let mut results = Vec::new();
        for entry in self.entries(Kind::Action, function, shard).await? {
            let record = self.get_whole(&entry, crate::records::RECORD_BYTES_MAX).await?;
            if let Some(content) = record.as_deref().and_then(content_of) {
                results.push((entry, content.to_vec()));
            }
        }
        Ok(results)
    }
}
