//! The folder of `forebay submit --dir`: uploaded to the farm's store.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use command_line::{
    failure::{Failure, USAGE},
    globals::Globals,
};
use model::{Context, DigestFunction, Group};
use remote::{Meter, Remote};
use service::host_name;
use settings::Settings;
use transfer::TransferError;

use crate::{
    bytes_text::size,
    farm::Farm,
    progress::{Progress, When},
    remote::GatewayArgs,
    submit_args::SubmitArgs,
};

/// Maximum number of uploads of a folder whose files change while they are read.
const TRIES: u32 = 3;

/// A folder of this machine, as the context of a build.
pub(crate) struct ContextFolder {
    /// Absolute path of the folder.
    path: PathBuf,
    /// Host name and path.
    source: String,
    ignore_files: bool,
}

impl ContextFolder {
    /// The folder of the flags, if they name one. It must exist.
    pub(crate) fn of(args: &SubmitArgs) -> Result<Option<Self>, Failure> {
        let Some(folder) = &args.dir else { return Ok(None) };
        let path = existing_folder(folder)?;
        let Some(text) = path.to_str() else {
            return Err(Failure::usage(format!("--dir {}: the path is not UTF-8", folder.display())));
        };
        let source = format!("{}:{text}", host_name());
        Ok(Some(Self { path, source, ignore_files: args.ignore_files }))
    }

    /// Uploads what the store lacks. Returns the context of the build, and what was uploaded.
    pub(crate) async fn upload(
        self,
        gateway: &GatewayArgs,
        farm: &Farm,
        globals: &Globals,
        settings: &Settings,
        group: &Group,
    ) -> Result<(Context, Uploaded), Failure> {
        let store = gateway.connect(farm, globals, settings).await.map_err(|failure| {
            if failure.is_unreachable() {
                failure.with("--worker-dir names a folder on the workers' machine instead")
            } else {
                failure
            }
        })?;
        let store = store.in_group(group);
        let progress = Progress::new(When::Auto);
        let mut tried = 1;
        loop {
            match self.try_upload(&store, &progress).await {
                Ok(done) => return Ok(done),
                Err(error) if !error.may_be_a_change() => return Err(error.into()),
                Err(error) if tried == TRIES => {
                    let advice =
                        format!("if files of {} changed meanwhile, submit again", self.path.display());
                    return Err(Failure::from(error).with(&advice));
                }
                Err(_) => tried += 1,
            }
        }
    }

    async fn try_upload(
        &self,
        store: &Remote,
        progress: &Progress,
    ) -> Result<(Context, Uploaded), TransferError> {
        let path = self.path.display();
        progress.phase(format!("reading {path}"));
        let scanned = transfer::scan_context(&self.path, self.ignore_files, DigestFunction::Sha256).await;
        let (digest, blobs) = scanned?;
        let meter = Arc::<Meter>::default();
        let uploading = store.upload_with_progress(&blobs, &meter);
        let (sent, bytes) = progress.transfer(&format!("uploading {path}"), &meter, uploading).await?;
        let uploaded = Uploaded { sent, all: blobs.len(), bytes };
        Ok((Context::Tree { digest, source: Some(self.source.clone()) }, uploaded))
    }
}

/// What was uploaded of a folder. A blob is a file or a list of a folder's entries; equal ones count once.
pub(crate) struct Uploaded {
    /// Number of blobs that the store lacked.
    sent: u64,
    /// Number of blobs of the folder.
    all: usize,
    /// Bytes that were sent.
    bytes: u64,
}

impl Uploaded {
    /// The upload in a line; `None` if nothing was uploaded.
    pub(crate) fn line(&self) -> Option<String> {
        let Self { sent, all, bytes } = self;
        (*sent > 0).then(|| format!("uploaded {sent} of {all} blobs (files and folders), {}", size(*bytes)))
    }
}

/// The absolute path of the folder that `--dir` names, which must exist.
pub(crate) fn existing_folder(folder: &Path) -> Result<PathBuf, Failure> {
    let what = format!("--dir {}", folder.display());
    let path = folder.canonicalize().map_err(|error| Failure::new(USAGE, &what, &error))?;
    if !path.is_dir() {
        return Err(Failure::usage(format!("{what}: not a folder")));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{ContextFolder, SubmitArgs, Uploaded};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        submit: SubmitArgs,
    }

    fn folder(dir: &str) -> Result<ContextFolder, String> {
        let parsed = Line::try_parse_from(["submit", "--dir", dir, "true"]).unwrap();
        let folder = ContextFolder::of(&parsed.submit).map_err(|failure| failure.line().to_owned())?;
        Ok(folder.unwrap())
    }

    #[test]
    fn an_upload_is_reported_unless_the_store_had_everything() {
        let line = |sent| Uploaded { sent, all: 5051, bytes: 12_345 }.line();
        assert_eq!(line(3).unwrap(), "uploaded 3 of 5051 blobs (files and folders), 12.3 kB");
        assert_eq!(line(0), None);
    }

    #[test]
    fn a_folder_must_exist() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().canonicalize().unwrap();
        let found = folder(path.to_str().unwrap()).unwrap();
        assert!(found.source.ends_with(&format!(":{}", path.display())), "{}", found.source);
        for missing in ["nowhere", "/nowhere/on/this/machine"] {
            assert!(folder(missing).err().unwrap().contains(&format!("--dir {missing}")));
        }
        let file = path.join("file");
        std::fs::write(&file, "").unwrap();
        assert!(folder(file.to_str().unwrap()).err().unwrap().contains("not a folder"));
    }
}
