//! Reading settings from their file and from variables.

use std::path::Path;

use config::{Config, Environment, File, FileFormat};
use invariant::Present as _;

use crate::{Settings, SettingsError};

impl Settings {
    /// Reads `file` (if it exists; it must if `required`, as when the user named it) and the environment.
    pub fn load(file: &Path, required: bool) -> Result<Self, SettingsError> {
        Self::load_with(file, required, Environment::with_prefix("FOREBAY"))
    }

    pub(crate) fn load_with(
        file: &Path,
        required: bool,
        environment: Environment,
    ) -> Result<Self, SettingsError> {
        let source = File::from(file).format(FileFormat::Toml).required(required);
        check_names(file, source.clone()).map_err(|error| error.of_file(file))?;
        let merged =
            Config::builder().add_source(source).add_source(environment.try_parsing(true)).build()?;
        let settings: Self = merged.try_deserialize()?;
        settings.check()?;
        Ok(settings)
    }
}

/// A setting of earlier versions, which has no effect: the service `cas` moves the blobs of that store.
const EARLIER_STORE: &str = "store_url";

/// Returns a message for each setting in `file` that only earlier versions had, with the setting to use instead.
pub fn earlier_names(file: &Path) -> Vec<String> {
    let source = File::from(file).format(FileFormat::Toml).required(false);
    // A file that cannot be read is reported when the settings are loaded.
    let found = named_in(source).unwrap_or_default().into_iter().filter(|name| name == EARLIER_STORE);
    let file = file.display();
    let message = |name: String| {
        format!(
            "the setting {name} in {file} has no effect; the farm's only store is cas_url, into which the service cas \
             moves the blobs of the earlier store"
        )
    };
    found.map(message).collect()
}

/// Rejects unknown names in a file, which would otherwise be ignored silently.
fn check_names(file: &Path, source: File<config::FileSourceFile, FileFormat>) -> Result<(), SettingsError> {
    let named = named_in(source)?;
    // Serialised directly, because `Config` drops empty values.
    let known = serde_json::to_value(Settings::default()).present("the default settings as JSON");
    match named.into_iter().filter(|name| name != EARLIER_STORE && known.get(name).is_none()).min() {
        None => Ok(()),
        Some(name) => Err(SettingsError::Unknown { file: file.display().to_string(), name }),
    }
}

/// The names of the settings in a file.
fn named_in(source: File<config::FileSourceFile, FileFormat>) -> Result<Vec<String>, SettingsError> {
    let named = Config::builder().add_source(source).build()?;
    let table: std::collections::HashMap<String, config::Value> = named.try_deserialize()?;
    Ok(table.into_keys().collect())
}
