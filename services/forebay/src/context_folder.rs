//! The folder of `forebay submit --dir`: uploaded to the farm's store.

use std::{path::PathBuf, sync::Arc};

use model::{Context, DigestFunction};
use remote::{Meter, Remote};
use service::host_name;
use settings::Settings;
use transfer::TransferError;

use crate::{
    failure::{Failure, USAGE},
    farm::Farm,
    globals::Globals,
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
        let what = format!("--dir {}", folder.display());
        let path = folder.canonicalize().map_err(|error| Failure::new(USAGE, &what, &error))?;
        if !path.is_dir() {
            return Err(Failure::usage(format!("{what}: not a folder")));
        }
        let Some(text) = path.to_str() else {
            return Err(Failure::usage(format!("{what}: the path is not UTF-8")));
        };
        let source = format!("{}:{text}", host_name());
        Ok(Some(Self { path, source, ignore_files: args.ignore_files }))
    }

    /// Uploads what the store does not have.
    pub(crate) async fn upload(
        self,
        gateway: &GatewayArgs,
        farm: &Farm,
        globals: &Globals,
        settings: &Settings,
    ) -> Result<Context, Failure> {
        let store = gateway.connect(farm, globals, settings).await.map_err(|failure| {
            if failure.is_unreachable() {
                failure.with("--worker-dir names a folder on the workers' machine instead")
            } else {
                failure
            }
        })?;
        let progress = Progress::new(When::Auto);
        let mut tried = 1;
        loop {
            match self.try_upload(&store, &progress).await {
                Ok(context) => return Ok(context),
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

    async fn try_upload(&self, store: &Remote, progress: &Progress) -> Result<Context, TransferError> {
        let path = self.path.display();
        progress.phase(format!("reading {path}"));
        let scanned = transfer::scan_context(&self.path, self.ignore_files, DigestFunction::Sha256).await;
        let (digest, blobs) = scanned?;
        let meter = Arc::<Meter>::default();
        let uploading = store.upload_telling(&blobs, &meter);
        progress.transfer(&format!("uploading {path}"), &meter, uploading).await?;
        Ok(Context::Tree { digest, source: Some(self.source.clone()) })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{ContextFolder, SubmitArgs};

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
