//! What the worker offers to builds: what its settings and its machine say, and its secrets, which may change while it runs.

use model::WorkerProperties;
use parking_lot::Mutex;
use service::ServiceError;
use tracing::{info, warn};

use crate::secret_store::{FoundSecrets, SecretStore};

/// The properties that the worker offers.
pub(crate) struct Offered {
    fixed: WorkerProperties,
    secrets: Option<SecretStore>,
    last: Mutex<Last>,
}

/// What the last look found.
#[derive(Default)]
struct Last {
    properties: WorkerProperties,
    unusable: Vec<String>,
}

impl Offered {
    /// Looks for the secrets the first time.
    ///
    /// # Errors
    ///
    /// Fails if the properties are too many, or if the secrets cannot be read.
    pub(crate) fn new(fixed: WorkerProperties, secrets: Option<SecretStore>) -> Result<Self, ServiceError> {
        let wrong = |error| ServiceError::failed("the setting worker_properties", error);
        fixed.check().map_err(wrong)?;
        let found = match &secrets {
            Some(store) => store.find().map_err(|error| {
                ServiceError::failed("looking for the secrets of builds (secrets_folder)", error)
            })?,
            None => FoundSecrets::default(),
        };
        let offered = Self { fixed, secrets, last: Mutex::default() };
        offered.note(found);
        Ok(offered)
    }

    /// The properties that it offers now.
    pub(crate) fn properties(&self) -> WorkerProperties {
        self.last.lock().properties.clone()
    }

    /// The folder with secrets, if builds may have some.
    pub(crate) fn secrets(&self) -> Option<&SecretStore> {
        self.secrets.as_ref()
    }

    /// Notes the secrets that were found; returns whether the properties changed.
    pub(crate) fn note(&self, FoundSecrets { offers, unusable }: FoundSecrets) -> bool {
        let mut last = self.last.lock();
        if last.unusable != unusable {
            for why in &unusable {
                warn!(why, "a file in the folder of secrets is not offered to builds");
            }
            last.unusable = unusable;
        }
        let count: usize = offers.values().map(Vec::len).sum();
        let mut properties = self.fixed.clone();
        properties.0.extend(offers);
        if let Err(error) = properties.check() {
            warn!(count, %error, "there are too many secrets: builds get none of them");
            properties = self.fixed.clone();
        }
        if last.properties == properties {
            return false;
        }
        if self.secrets.is_some() {
            info!(count, "offers secrets to builds");
        }
        last.properties = properties;
        true
    }
}
