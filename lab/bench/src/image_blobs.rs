//! Images for benchmarks, made of files of this machine, and put into the store of a farm instead of a registry.

use std::{fs, io::Write as _, path::PathBuf};

use flate2::{Compression, write::GzEncoder};
use model::{BlobDigest, Digest, DigestFunction, ImageReference, PinnedImage};
use remote::{Remote, Source};

use crate::error::BenchError;

/// Where large files of a machine are.
const FOLDERS: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/bin", "/usr/share"];
/// Files above this size are left out, so that layers have many files.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// The content of an image.
pub(crate) struct ImageBlobs {
    layers: Vec<Layer>,
    manifest: Vec<u8>,
    config: Vec<u8>,
}

struct Layer {
    packed: Vec<u8>,
    diff_id: Digest,
    bytes: u64,
}

fn failed(what: &str) -> impl Fn(std::io::Error) -> BenchError {
    let what = what.to_owned();
    move |error| BenchError::new(&what, &error)
}

/// Files of this machine, in a stable order.
fn machine_files() -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        let mut of_folder: Vec<(PathBuf, u64)> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let about = entry.metadata().ok()?;
                (about.is_file() && about.len() <= FILE_BYTES_MAX).then(|| (entry.path(), about.len()))
            })
            .collect();
        of_folder.sort();
        found.extend(of_folder);
    }
    found
}

impl Layer {
    /// A layer of about `bytes` bytes of files, after `skip` of them; `mark` distinguishes it from others.
    fn of_machine(skip: usize, bytes: u64, mark: &str) -> Result<Self, BenchError> {
        let mut archive = tar::Builder::new(Vec::new());
        let failed = failed("cannot make a layer");
        add(&mut archive, &format!("marks/{mark}"), mark.as_bytes()).map_err(&failed)?;
        let mut left = bytes;
        for (path, size) in machine_files().into_iter().cycle().skip(skip) {
            if left == 0 {
                break;
            }
            let mut content = fs::read(&path).map_err(&failed)?;
            content.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left -= (content.len() as u64).min(left);
            if size > 0 {
                let name = format!("files/{left}-{}", path.file_name().unwrap_or_default().display());
                add(&mut archive, &name, &content).map_err(&failed)?;
            }
        }
        Self::pack(&archive.into_inner().map_err(&failed)?)
    }

    /// A layer with a shell and what it needs.
    fn of_shell() -> Result<Self, BenchError> {
        let failed = failed("cannot make a layer with a shell");
        let mut archive = tar::Builder::new(Vec::new());
        let programs = ["/bin/sh", "/bin/cat", "/bin/true", "/bin/sleep"];
        let mut files: Vec<String> = programs.map(str::to_owned).to_vec();
        for program in programs {
            let output = std::process::Command::new("ldd").arg(program).output().map_err(&failed)?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            files.extend(text.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned));
        }
        files.sort();
        files.dedup();
        for file in files {
            let content = fs::read(&file).map_err(&failed)?;
            add(&mut archive, file.trim_start_matches('/'), &content).map_err(&failed)?;
        }
        Self::pack(&archive.into_inner().map_err(&failed)?)
    }

    fn pack(archive: &[u8]) -> Result<Self, BenchError> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        let packed =
            gzip.write_all(archive).and_then(|()| gzip.finish()).map_err(failed("cannot pack a layer"))?;
        Ok(Self { packed, diff_id: Digest::of(archive), bytes: archive.len() as u64 })
    }
}

fn add(archive: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]) -> std::io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o755);
    archive.append_data(&mut header, name, content)
}

impl ImageBlobs {
    /// An image with a shell, and with `layers` layers of other files that have `bytes` bytes together. Images with other marks
    /// have other layers, except that of the shell.
    pub(crate) fn make(layers: u64, bytes: u64, mark: &str) -> Result<Self, BenchError> {
        let mut all = vec![Layer::of_shell()?];
        for number in 0..layers {
            let skip = usize::try_from(number * 50).unwrap_or_default();
            all.push(Layer::of_machine(skip, bytes / layers.max(1), &format!("{mark}-{number}"))?);
        }
        let diff_ids: Vec<String> = all.iter().map(|layer| layer.diff_id.to_string()).collect();
        let config = serde_json::json!({
            "os": "linux",
            "config": { "Env": ["PATH=/usr/bin:/bin"] },
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let config = config.to_string().into_bytes();
        let named = |content: &[u8], kind: &str| {
            serde_json::json!({
                "mediaType": kind, "digest": Digest::of(content).to_string(), "size": content.len(),
            })
        };
        let layers: Vec<_> = all
            .iter()
            .map(|layer| named(&layer.packed, "application/vnd.oci.image.layer.v1.tar+gzip"))
            .collect();
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "config": named(&config, "application/vnd.oci.image.config.v1+json"),
            "layers": layers,
        });
        Ok(Self { layers: all, manifest: manifest.to_string().into_bytes(), config })
    }

    /// Bytes of its layers, unpacked.
    pub(crate) fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.bytes).sum()
    }

    /// Bytes of its layers as they are stored.
    pub(crate) fn packed_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.packed.len() as u64).sum()
    }

    /// All blobs of the image.
    pub(crate) fn blobs(&self) -> Vec<(BlobDigest, Vec<u8>)> {
        let layers = self.layers.iter().map(|layer| layer.packed.clone());
        let all = layers.chain([self.config.clone(), self.manifest.clone()]);
        all.map(|content| (DigestFunction::Sha256.digest(&content), content)).collect()
    }

    /// The image, in a registry that does not exist: all of it is in the store.
    pub(crate) fn pinned(&self) -> Result<PinnedImage, BenchError> {
        let image: Result<ImageReference, _> = "docker://registry.invalid/bench".parse();
        let image = image.map_err(|error| BenchError::new("naming an image", &error))?;
        let manifest = DigestFunction::Sha256.digest(&self.manifest);
        Ok(PinnedImage { reference: image.pinned(Digest::of(&self.manifest)), manifest })
    }

    /// Puts it into the store of a farm.
    pub(crate) async fn upload(&self, remote: &Remote) -> Result<(), BenchError> {
        let sources =
            self.blobs().into_iter().map(|(digest, content)| (digest, Source::Bytes(content.into())));
        Ok(remote.upload(&sources.collect()).await.map(drop)?)
    }
}
