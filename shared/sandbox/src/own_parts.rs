//! What the commands of one sandbox of a workspace have of their own.

use std::ffi::OsString;
use std::path::PathBuf;

use shim::User;

use crate::image_root::ImageRoot;
use crate::shared_network::SharedNetwork;

/// Size in bytes of the file system in memory that secrets are mounted in, which has only places for them.
const SECRETS_SIZE: &str = "1048576";

/// What the commands of one sandbox have of their own.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnParts<'a> {
    /// The user that they run as, which requires root.
    pub user: Option<User>,
    /// The image whose files they see, which is mounted as overlay.
    pub image: Option<&'a ImageRoot>,
    /// The network that they share with services, instead of the usual one.
    pub network: Option<&'a SharedNetwork>,
    /// The secrets that they find as files.
    pub secrets: Option<&'a SecretMount>,
}

/// Files that only one sandbox has, in a folder in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretMount {
    /// An empty folder of the host, in that of the workspace. Commands find the files there.
    pub at: PathBuf,
    /// Files of the host. They may be removed when the sandbox has started.
    pub files: Vec<PathBuf>,
}

impl SecretMount {
    /// The arguments of bubblewrap. Each file is mounted by itself: its folder on the host need not be open to the
    /// user of the sandbox.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> =
            ["--perms", "0755", "--size", SECRETS_SIZE, "--tmpfs"].map(OsString::from).to_vec();
        arguments.push(self.at.clone().into());
        for file in &self.files {
            let name = file.file_name().unwrap_or_default();
            arguments.extend(["--ro-bind".into(), file.into(), self.at.join(name).into()]);
        }
        arguments.extend(["--remount-ro".into(), self.at.clone().into()]);
        arguments
    }
}
