//! Whether this machine mounts images.

use std::fs;
use std::path::Path;

use shim::{Mode, Options, Overlay, Shim};

use crate::error::SandboxError;

/// Whether slots can mount images as overlay with layers in `folder`: containers may not be allowed to, and not all file
/// systems can be layers. `program` is that of the slots.
///
/// Fails if `folder` cannot be written.
pub async fn mounts_overlays(program: &Path, folder: &Path) -> Result<bool, SandboxError> {
    let probe = folder.join(format!("overlay-{}", std::process::id()));
    let [one, two, at] = ["one", "two", "at"].map(|name| probe.join(name));
    for path in [&one, &two, &at] {
        fs::create_dir_all(path).map_err(|source| SandboxError::file("creating", path, source))?;
    }
    let overlay = Some(Overlay { lower: vec![one, two], at, ..Overlay::default() });
    // Where namespaces are refused, this mode still starts.
    let options = Options { overlay, mode: Some(Mode::Subreaper), ..Options::default() };
    let mounted = match Shim::start_with(program, &options).await {
        Ok(shim) => {
            shim.stop().await?;
            true
        }
        Err(error) => {
            tracing::debug!(%error, "no overlay mounts");
            false
        }
    };
    fs::remove_dir_all(&probe).map_err(|source| SandboxError::file("removing", &probe, source))?;
    Ok(mounted)
}
