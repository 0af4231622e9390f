//! `forebay bench images`: measures actions in images, and what images cost a machine.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use command_line::failure::say;
use model::DigestFunction;
use reapi::execution::{Action, Command, Platform, command::EnvironmentVariable, platform::Property};
use remote::{Remote, action_of};

use crate::{
    error::BenchError, farm::BenchFarm, figures::Figures, image_blobs::ImageBlobs, image_table,
    memory::Memory, plot_file::PlotFile, report::BenchReport, statistics::median_and_worst,
};

/// Unpacked bytes of the image whose start is measured.
const START_BYTES: u64 = 150_000_000;
/// Number of images that are started cold.
const COLD: usize = 5;
/// Rounds of warm actions, and actions of each kind in a round.
const ROUNDS: usize = 10;
const ACTIONS: usize = 20;
/// The images of the part `cache`: their number, layers and bytes, and the limit of unpacked layers.
const CACHE: (usize, u64, u64) = (100, 2, 40_000_000);
const CACHE_BYTES: u64 = 2 << 30;

/// Options of `forebay bench images`, which starts farms in temporary folders.
#[derive(Debug, Args)]
pub(crate) struct ImagesArgs {
    /// Measure only this part
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// Draw the times of mounting and of unpacking (part `table`) into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Mounting layers compared with unpacking them, for images of several sizes
    Table,
    /// The first action in an image of 150 MB that is in the store, and later ones compared with actions without an image
    Start,
    /// 100 images of two layers with a limit of 2 GiB, beside an action that goes on
    Cache,
}

/// Measures all selected parts.
pub(crate) async fn measure(args: &ImagesArgs) -> Result<BenchReport, BenchError> {
    let wants = |part| args.only.is_none_or(|only| only == part);
    let mut plot = PlotFile::create(args.plot.as_deref(), wants(Part::Table))?;
    let mut figures = Figures::default();
    if wants(Part::Table) {
        figures.part("table", image_table::measure(&mut plot).await?);
    }
    if wants(Part::Start) {
        figures.part("start", start().await?);
    }
    if wants(Part::Cache) {
        figures.part("cache", cache().await?);
    }
    plot.write("Images: mounting layers and unpacking them", "median, fastest and slowest")?;
    Ok(BenchReport::new("", figures, Memory::default()))
}

async fn farm(bytes_max: u64) -> Result<(BenchFarm, Remote), BenchError> {
    let most = bytes_max.to_string();
    let settings = [("FOREBAY_EXECUTOR_SLOTS", "2"), ("FOREBAY_IMAGE_BYTES_MAX", most.as_str())];
    let farm = BenchFarm::start_with(1, &["--executors", "1"], &settings).await?;
    let remote = farm.remote().await?;
    Ok((farm, remote))
}

/// Runs a script that is not cached, in an image; returns the time as its client sees it.
async fn run(remote: &Remote, image: Option<&ImageBlobs>, script: &str) -> Result<Duration, BenchError> {
    let image = image.map(ImageBlobs::pinned).transpose()?;
    let property = |image: model::PinnedImage| Property {
        name: "container-image".into(),
        value: image.reference.to_string(),
    };
    let platform = image.map(|image| Platform { properties: vec![property(image)] });
    // Each is another action.
    let unique = uuid::Uuid::new_v4().to_string();
    let command = Command {
        arguments: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        environment_variables: vec![EnvironmentVariable { name: "UNIQUE".into(), value: unique }],
        ..Command::default()
    };
    let function = DigestFunction::Sha256;
    let action = Action { do_not_cache: true, platform, ..Action::default() };
    let (digest, blobs) = action_of(function, &command, action, &function.empty());
    remote.upload(&blobs).await?;
    let begun = Instant::now();
    let executed = remote.execute(&digest, true, 0, |_, _| {}).await?;
    let took = begun.elapsed();
    let status = executed.response.status.unwrap_or_default();
    let code = executed.response.result.map_or(-1, |result| result.exit_code);
    if status.code != 0 || code != 0 {
        return Err(BenchError::plain(format!("an action failed: exit code {code}, {}", status.message)));
    }
    Ok(took)
}

async fn start() -> Result<Figures, BenchError> {
    let (farm, remote) = farm(20 << 30).await?;
    run(&remote, None, "exit 0").await?;
    let (mut cold, mut image, mut sizes) = (Vec::new(), None, (0, 0));
    for number in 1..=COLD {
        say(&format!("starting a new image, {number} of {COLD}"));
        let new = ImageBlobs::make(3, START_BYTES, &format!("start-{number}"))?;
        new.upload(&remote).await?;
        cold.push(run(&remote, Some(&new), "exit 0").await?.as_secs_f64());
        sizes = (new.bytes(), new.packed_bytes());
        image = Some(new);
    }
    let (mut plain, mut inside) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (image, times) in [(None, &mut plain), (image.as_ref(), &mut inside)] {
            // The sandbox of a slot is kept from the second action on.
            for _ in 0..2 {
                run(&remote, image, "exit 0").await?;
            }
            for _ in 0..ACTIONS {
                times.push(run(&remote, image, "exit 0").await?.as_secs_f64() * 1000.0);
            }
        }
    }
    farm.stop().await;
    let mut figures = Figures::default();
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    figures.figure("image_mb", "image: unpacked", megabytes(sizes.0), "MB");
    figures.figure("image_packed_mb", "image: in the store", megabytes(sizes.1), "MB");
    let worst = cold.iter().copied().fold(0.0, f64::max);
    figures.figure("cold_s", "first action in it, median", median_and_worst(&mut cold).0, "s");
    figures.figure("cold_worst_s", "first action in it, slowest", worst, "s");
    let [plain, inside] = [plain, inside].map(|mut of| median_and_worst(&mut of).0);
    figures.figure("plain_ms", "no-op action without an image", plain, "ms");
    figures.figure("warm_ms", "no-op action in it", inside, "ms");
    figures.figure("warm_to_plain_ratio", "in it to without an image", inside / plain, "");
    Ok(figures)
}

async fn cache() -> Result<Figures, BenchError> {
    let (farm, remote) = farm(CACHE_BYTES).await?;
    let folder = farm.data("images");
    let (count, layers, bytes) = CACHE;
    let first = ImageBlobs::make(layers, bytes, "cache-first")?;
    first.upload(&remote).await?;
    // It reads a file of its image again and again, while actions run in the other images.
    let script = "n=0; while [ $n -lt 600 ]; do cat /marks/cache-first-0 >/dev/null || exit 7; sleep 1; n=$((n+1)); done";
    let held = {
        let (remote, script) = (remote.clone(), script.to_owned());
        let first = ImageBlobs::make(layers, bytes, "cache-first")?;
        tokio::spawn(async move { run(&remote, Some(&first), &script).await })
    };
    let mut most = 0;
    for number in 1..=count {
        if number % 10 == 0 {
            say(&format!("running an action in image {number} of {count}"));
        }
        let image = ImageBlobs::make(layers, bytes, &format!("cache-{number}"))?;
        image.upload(&remote).await?;
        run(&remote, Some(&image), "cat /marks/* >/dev/null").await?;
        most = most.max(disk::Used::of(&folder).bytes);
    }
    let is_alive = !held.is_finished();
    held.abort();
    farm.stop().await;
    if !is_alive {
        return Err(BenchError::plain("the action that went on has lost its image"));
    }
    let mut figures = Figures::default();
    figures.figure("images", "images that ran", count as u64, "");
    figures.figure("all_gb", "their layers, unpacked", count as f64 * bytes as f64 / 1e9, "GB");
    figures.figure("most_gb", "most at a time on the disk", most as f64 / 1e9, "GB");
    figures.figure("limit_gb", "limit (image_bytes_max)", CACHE_BYTES as f64 / 1e9, "GB");
    Ok(figures)
}
