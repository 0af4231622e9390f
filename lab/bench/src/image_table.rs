//! Mounting the layers of an image compared with unpacking them.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use cas::{Cas, CasConfig};
use command_line::failure::say;
use download::{Downloader, Reach};
use images::{Image, Images, PullProgress, Registries};
use sandbox::{Cgroups, Run, Sandbox, Slot};
use settings::Settings;
use simulate::IntervalRow;

use crate::{
    error::BenchError, figures::Figures, image_blobs::ImageBlobs, plot_file::PlotFile, program, slots,
    statistics::median_and_worst,
};

/// Names of the images, their layers and their bytes.
const IMAGES: [(&str, u64, u64); 3] =
    [("small", 1, 5_000_000), ("medium", 3, 150_000_000), ("large", 10, 500_000_000)];
/// Times that each is unpacked and removed, and that a sandbox is made in it.
const TIMES: usize = 5;

/// A store and the images of a machine, in a temporary folder.
struct Place {
    cas: Cas,
    images: Images,
    overlays: bool,
}

impl Place {
    async fn open(folder: &Path) -> Result<Self, BenchError> {
        let failed = |what: &str, error: &dyn std::error::Error| BenchError::new(what, error);
        let cas = Cas::open(CasConfig::new(folder.join("cas")));
        let cas = cas.map_err(|error| failed("cannot open a store", &error))?;
        let downloader = Downloader::new(Reach::everywhere());
        let downloader = downloader.map_err(|error| failed("preparing downloads", &error))?;
        let registries = Registries::new(Settings::default().gateway().images, downloader);
        let overlays = sandbox::mounts_overlays(&program::forebay()?, folder).await;
        let overlays = overlays.map_err(|error| failed("trying to mount an image", &error))?;
        let images = Images::open(folder.join("images"), 40 << 30, overlays, (cas.clone(), registries));
        let images = images.map_err(|error| failed("cannot open the images", &error))?;
        Ok(Self { cas, images, overlays })
    }

    async fn store(&self, blobs: &ImageBlobs) -> Result<(), BenchError> {
        for (digest, content) in blobs.blobs() {
            let stored = self.cas.put(&digest, content.into()).await;
            stored.map_err(|error| BenchError::new("storing an image", &error))?;
        }
        Ok(())
    }

    async fn get(&self, blobs: &ImageBlobs) -> Result<Arc<Image>, BenchError> {
        let image = self.images.get(&blobs.pinned()?, &PullProgress::default()).await;
        image.map_err(|error| BenchError::new("unpacking an image", &error))
    }
}

/// An image with a shell, unpacked in `folder`.
pub(crate) async fn small_image(folder: &Path) -> Result<Arc<Image>, BenchError> {
    let place = Place::open(folder).await?;
    let blobs = ImageBlobs::make(1, 1_000_000, "small")?;
    place.store(&blobs).await?;
    place.get(&blobs).await
}

/// Measures the images of all sizes.
pub(crate) async fn measure(plot: &mut PlotFile) -> Result<Figures, BenchError> {
    let failed = |what: &str, error: &dyn std::error::Error| BenchError::new(what, error);
    let folder = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .map_err(|error| failed("cannot create a temporary folder", &error))?;
    let place = Place::open(folder.path()).await?;
    let mut figures = Figures::default();
    figures.field("overlays", place.overlays);
    for (name, layers, bytes) in IMAGES {
        say(&format!("measuring the {name} image"));
        let blobs = ImageBlobs::make(layers, bytes, name)?;
        place.store(&blobs).await?;
        let (mut unpack, mut remove) = (Vec::new(), Vec::new());
        for _ in 0..TIMES {
            let begun = Instant::now();
            drop(place.get(&blobs).await?);
            unpack.push(millis(begun.elapsed()));
            let begun = Instant::now();
            place.images.remove_unused().await.map_err(|error| failed("removing an image", &error))?;
            remove.push(millis(begun.elapsed()));
        }
        let (plain, inside) = sandboxes(folder.path(), &place.get(&blobs).await?).await?;
        let title = |what: &str| format!("{name} image, {} MB: {what}", blobs.bytes() / 1_000_000);
        let rows = [
            ("unpack", &unpack),
            ("mount, new sandbox", &inside),
            ("no image, new sandbox", &plain),
            ("remove", &remove),
        ];
        let rows = rows.map(|(what, times)| extremes_row(what, times)).to_vec();
        plot.add(&format!("{name} image, {} MB", blobs.bytes() / 1_000_000), "time, ms", rows);
        let median = |mut of: Vec<f64>| median_and_worst(&mut of).0;
        let mut part = Figures::default();
        part.figure("unpack_ms", &title("unpack"), median(unpack), "ms");
        part.figure("remove_ms", &title("remove"), median(remove), "ms");
        part.figure("sandbox_ms", &title("new sandbox in it"), median(inside), "ms");
        part.figure("plain_sandbox_ms", &title("new sandbox beside it"), median(plain), "ms");
        figures.part(name, part);
    }
    Ok(figures)
}

/// A row with the median of times, the fastest and the slowest.
fn extremes_row(name: &str, times: &[f64]) -> IntervalRow {
    let mut sorted = times.to_vec();
    let (value, high) = median_and_worst(&mut sorted);
    let low = sorted.first().copied().unwrap_or_default();
    IntervalRow { name: name.to_owned(), low, value, high }
}

/// Times of the first commands in new sandboxes: without an image, and in it.
async fn sandboxes(folder: &Path, image: &Arc<Image>) -> Result<(Vec<f64>, Vec<f64>), BenchError> {
    let failed = |error: sandbox::SandboxError| BenchError::new("running a command in an image", &error);
    let name = format!("bench-{}", std::process::id());
    let config = slots::config(name, folder, Sandbox::Bubblewrap, Cgroups::default())?;
    let mut slot = Slot::start(config).await.map_err(failed)?;
    std::fs::create_dir_all(folder.join("work/root"))
        .map_err(|error| BenchError::new("creating an input root", &error))?;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..TIMES * 2 {
        for (image, times) in [None, Some(image.root())].into_iter().zip(&mut times) {
            let run = Run { image, ..slots::run(vec!["/bin/true".to_owned()], folder) };
            let begun = Instant::now();
            slot.run(run).await.map_err(failed)?.finish().await.map_err(failed)?;
            times.push(millis(begun.elapsed()));
        }
    }
    slot.stop().await.map_err(failed)?;
    let [plain, inside] = times;
    Ok((plain, inside))
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
