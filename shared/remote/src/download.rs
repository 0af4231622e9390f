//! Downloads many blobs into files: small ones in batches, large ones as streams. A dedicated thread writes each
//! while the next is on its way.

use std::{
    collections::HashMap,
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use disk::Confined;
use futures::{StreamExt as _, TryStreamExt as _};
use invariant::impossible;
use model::BlobDigest;
use tokio::sync::mpsc;

use crate::{
    Meter, Remote, RemoteError, batches, is_small,
    resume::{Connection, Pieces},
    transfer::{blocking, file_error},
};

/// Maximum number of concurrent batches.
const BATCHES: usize = 4;
/// Maximum number of concurrent streams.
const STREAMS: usize = 2;
/// Maximum number of pieces of a stream that wait to be written.
const AHEAD: usize = 4;

/// A file to write: a blob and its destination.
#[derive(Debug, Clone)]
pub struct Placed {
    pub digest: BlobDigest,
    /// The folder below which the file is written, through no link; folders above the file are made. Without one, the caller
    /// has to answer for the path.
    pub below: Option<Confined>,
    /// Path of the file. An existing file is replaced.
    pub path: PathBuf,
    /// Whether the file gets execute permission.
    pub executable: bool,
}

impl Placed {
    fn create(&self) -> io::Result<File> {
        let Some(below) = &self.below else { return File::create(&self.path) };
        below.make_folder(self.path.parent().unwrap_or(Path::new("")))?;
        below.place_at(&self.path)?.create()
    }

    fn open(&self) -> io::Result<File> {
        match &self.below {
            None => File::open(&self.path),
            Some(below) => below.file(&self.path),
        }
    }

    fn finish(&self, file: &File) -> io::Result<()> {
        if self.executable { file.set_permissions(Permissions::from_mode(0o755)) } else { Ok(()) }
    }

    pub fn remove(&self) -> io::Result<()> {
        match &self.below {
            None => fs::remove_file(&self.path),
            Some(below) => fs::remove_file(below.place_at(&self.path)?.path()),
        }
    }
}

type Destinations = HashMap<BlobDigest, Vec<Placed>>;

impl Remote {
    /// Writes blobs to files. Each blob is downloaded once, even if several files have its content.
    pub async fn fetch_many(&self, files: Vec<Placed>, meter: &Meter) -> Result<(), RemoteError> {
        let mut places = Destinations::new();
        for file in files {
            places.entry(file.digest).or_default().push(file);
        }
        meter.expect(places.len() as u64, places.keys().map(|digest| digest.size).sum());
        let (small, large): (Destinations, Destinations) =
            places.into_iter().partition(|(digest, _)| is_small(digest));
        let mut small: Vec<(BlobDigest, Vec<Placed>)> = small.into_iter().collect();
        // File systems create the files of one folder faster one after the other.
        small.sort_unstable_by(|(_, a), (_, b)| first_path(a).cmp(&first_path(b)));
        let digests: Vec<BlobDigest> = small.iter().map(|(digest, _)| *digest).collect();
        let mut small = small.into_iter();
        let batches: Vec<Vec<(BlobDigest, Vec<Placed>)>> =
            batches(&digests).iter().map(|batch| small.by_ref().take(batch.len()).collect()).collect();
        futures::stream::iter(batches.into_iter().map(|batch| self.fetch_batch(batch, meter)))
            .buffer_unordered(BATCHES)
            .try_collect::<()>()
            .await?;
        futures::stream::iter(
            large.into_iter().map(|(digest, places)| self.fetch_large(digest, places, meter)),
        )
        .buffer_unordered(STREAMS)
        .try_collect()
        .await
    }

    pub async fn fetch(&self, digest: &BlobDigest, path: &Path) -> Result<(), RemoteError> {
        let placed = Placed { digest: *digest, below: None, path: path.to_owned(), executable: false };
        self.fetch_many(vec![placed], &Meter::default()).await
    }

    async fn fetch_batch(
        &self,
        batch: Vec<(BlobDigest, Vec<Placed>)>,
        meter: &Meter,
    ) -> Result<(), RemoteError> {
        let digests: Vec<BlobDigest> = batch.iter().map(|(digest, _)| *digest).collect();
        let mut connection = Connection::new(self);
        let contents = loop {
            match connection.remote().read_batch(&digests).await {
                Ok(contents) => break contents,
                Err(error) => connection.again(error, "reading a batch of blobs".to_owned()).await?,
            }
        };
        blocking(move || {
            for ((digest, places), content) in batch.into_iter().zip(contents) {
                let content = content.ok_or(RemoteError::Missing { digest })?;
                verify(&digest, &digest.function.digest(&content))?;
                for placed in places {
                    let written = placed.create().and_then(|mut file| {
                        file.write_all(&content)?;
                        placed.finish(&file)
                    });
                    written.map_err(file_error(&placed.path))?;
                }
            }
            Ok(())
        })
        .await?;
        meter.moved(digests.len() as u64, digests.iter().map(|digest| digest.size).sum());
        Ok(())
    }

    async fn fetch_large(
        &self,
        digest: BlobDigest,
        places: Vec<Placed>,
        meter: &Meter,
    ) -> Result<(), RemoteError> {
        let mut pieces = Pieces::new(self, &digest);
        // Read before the file is created: the store may not have the blob.
        let mut next = pieces.next().await?;
        let (sender, receiver) = mpsc::channel::<Bytes>(AHEAD);
        let writing = blocking(move || write(&digest, &places, receiver));
        let reading = async move {
            while let Some(piece) = next {
                meter.moved(0, piece.len() as u64);
                // Closed: the writer has failed and reports the error.
                if sender.send(piece).await.is_err() {
                    return Ok(());
                }
                next = pieces.next().await?;
            }
            Ok(())
        };
        let (read, written) = tokio::join!(reading, writing);
        // If reading failed, the written file is incomplete too.
        read.and(written)?;
        meter.moved(1, 0);
        Ok(())
    }
}

/// Writes the pieces to the first of the files, verifies the whole, and copies the file to the others.
fn write(
    digest: &BlobDigest,
    places: &[Placed],
    mut pieces: mpsc::Receiver<Bytes>,
) -> Result<(), RemoteError> {
    let Some((first, others)) = places.split_first() else {
        impossible!("{digest} is downloaded for no file");
        return Ok(());
    };
    let failed = file_error(&first.path);
    let mut out = first.create().map_err(&failed)?;
    let mut hasher = digest.function.hasher();
    while let Some(piece) = pieces.blocking_recv() {
        out.write_all(&piece).map_err(&failed)?;
        hasher.update(&piece);
    }
    if let Err(error) = verify(digest, &hasher.finish()) {
        // A wrong file must not be mistaken for the requested one. The error below matters more than this one.
        let _ = first.remove();
        return Err(error);
    }
    first.finish(&out).map_err(&failed)?;
    for other in others {
        let copied = other.create().and_then(|mut copy| {
            io::copy(&mut first.open()?, &mut copy)?;
            other.finish(&copy)
        });
        copied.map_err(file_error(&other.path))?;
    }
    Ok(())
}

fn first_path(places: &[Placed]) -> Option<&Path> {
    places.first().map(|placed| placed.path.as_path())
}

fn verify(digest: &BlobDigest, found: &BlobDigest) -> Result<(), RemoteError> {
    if found == digest {
        return Ok(());
    }
    Err(RemoteError::Answer { what: format!("reading {digest}"), why: format!("its digest is {found}") })
}
