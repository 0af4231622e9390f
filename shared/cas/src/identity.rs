//! The identity of a store: an id in its folder, or in the object store behind it.

use std::{fs, io, path::Path};

use model::{DigestFunction, StoreId};
use tokio::sync::watch;

use crate::{Cas, CasError, backing::farm::Farm, layout::ID_NAME};

impl Cas {
    /// Returns the id of the store, if it has one. The store of another farm is asked for it; a server that is not
    /// Forebay, or of an earlier version, has none.
    pub async fn id(&self) -> Result<Option<StoreId>, CasError> {
        if let Some(farm) = self.farm() {
            return farm.id().await;
        }
        if let Some(objects) = self.objects() {
            return objects.id().await;
        }
        let root = self.config().root.clone();
        let path = root.join(ID_NAME);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.parse().ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(CasError::disk("reading", &path, error)),
        }
    }

    /// Returns the id of the store, which becomes `id` if it had none. The store of another farm gets no id from here.
    pub async fn id_or(&self, id: StoreId) -> Result<StoreId, CasError> {
        if let Some(farm) = self.farm() {
            return Ok(farm.id().await?.unwrap_or(id));
        }
        if let Some(objects) = self.objects() {
            return objects.id_or(id).await;
        }
        let root = &self.config().root;
        folder_id(root, id).map_err(|error| CasError::disk("writing a store id into", root, error))
    }

    /// Returns the URL where the store keeps its blobs.
    pub fn url(&self) -> String {
        let config = self.config();
        config.backing.clone().unwrap_or_else(|| format!("file://{}", config.root.display()))
    }

    /// Whether another farm's store, over the Remote Execution API, decides what counts as stored.
    pub fn is_remote(&self) -> bool {
        self.farm().is_some()
    }

    /// Whether the blobs are in an object store or in the store of another farm, not only in a folder.
    pub fn has_backing(&self) -> bool {
        self.backing().is_some()
    }

    /// Publishes whether the last call to the store of another farm, or an attempt of it, remained without an answer;
    /// `None` if the store is not behind the Remote Execution API.
    pub fn away(&self) -> Option<watch::Receiver<bool>> {
        self.farm().map(Farm::away)
    }

    /// Reports that the caller gave up a call to the store without an answer; [`Cas::away`] publishes it.
    pub fn report_no_answer(&self) {
        if let Some(farm) = self.farm() {
            farm.report_no_answer();
        }
    }

    /// Asks for a blob that does not exist, so that no cache can answer: fails if the store does not answer.
    pub async fn probe(&self) -> Result<(), CasError> {
        let absent = DigestFunction::Sha256.digest(uuid::Uuid::new_v4().as_bytes());
        self.missing(&[absent]).await.map(drop)
    }
}

/// Returns the id of the folder `root`, which all its processes share; it becomes `id` if the folder had none.
pub fn folder_id(root: &Path, id: StoreId) -> io::Result<StoreId> {
    let path = root.join(ID_NAME);
    let read = || fs::read_to_string(&path).map(|text| text.parse().ok());
    if let Ok(Some(there)) = read() {
        return Ok(there);
    }
    fs::create_dir_all(root)?;
    let partial = root.join(format!("{ID_NAME}.{id}"));
    fs::write(&partial, id.to_string())?;
    // If several processes do this at once, the first one wins.
    let linked = fs::hard_link(&partial, &path);
    fs::remove_file(&partial)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => read()?.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{} contains no store id", path.display()))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CasConfig;

    #[test]
    fn a_folder_has_one_id() {
        let root = tempfile::tempdir().unwrap();
        let ids: Vec<StoreId> = std::thread::scope(|scope| {
            let make = || folder_id(root.path(), StoreId::generate()).unwrap();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn stores_over_one_object_store_are_one() {
        let shared = tempfile::tempdir().unwrap();
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let open = |root: &Path, backing: Option<String>| {
            Cas::open(CasConfig { backing, ..CasConfig::new(root) }).unwrap()
        };
        let url = format!("file://{}", shared.path().display());
        let [first, second] = [0, 1].map(|at: usize| open(folders[at].path(), Some(url.clone())));
        assert_eq!(first.id().await.unwrap(), None);
        let id = first.id_or(StoreId::generate()).await.unwrap();
        assert_eq!(second.id_or(StoreId::generate()).await.unwrap(), id);
        assert_eq!(second.id().await.unwrap(), Some(id));
        let alone = open(folders[0].path(), None);
        assert_eq!(alone.id().await.unwrap(), None);
        assert_ne!(alone.id_or(StoreId::generate()).await.unwrap(), id);
    }
}
