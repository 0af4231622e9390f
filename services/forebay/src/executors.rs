//! `forebay executors`: lists live executors.

use std::process::ExitCode;

use comfy_table::Table;
use command_line::{failure::Failure, globals::Globals, stdout};
use model::{Digest, ExecutorHeartbeat, ExecutorStatus, ImageReference, Millis, Resources};
use settings::Settings;

use crate::{
    bytes_text::{age, size},
    clock_text::with_skew,
    farm::Farm,
    style::{self, Tone},
    workers,
};

/// Maximum number of images of an executor in text, and of characters of their digests.
const IMAGES_SHOWN: usize = 10;
const DIGEST_SHOWN: usize = 12;

/// Lists the executors with a valid lease, in the state of their last renewal.
pub(crate) async fn run(globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let mut executors = farm.call(async |client| Ok(client.bus().leases().executors().await?)).await?;
    executors.sort_by(|a, b| a.pool.cmp(&b.pool).then_with(|| a.executor.cmp(&b.executor)));
    if globals.json {
        stdout::json(&executors)?;
    } else if executors.is_empty() {
        stdout::line("no executor is running: start one with `forebay serve executor`")?;
    } else {
        stdout::line(&table(&executors, farm.now()).trim_fmt())?;
        for it in executors.iter().filter(|it| !it.image_names.is_empty()) {
            stdout::line(&images(it))?;
        }
        for it in &executors {
            workers::red(&it.window, "executor", it.executor.as_str())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(executors: &[ExecutorHeartbeat], now: Millis) -> Table {
    let mut table = style::table();
    table.set_header([
        "EXECUTOR",
        "POOL",
        "HOST",
        "PID",
        "STATUS",
        "PROCESSORS",
        "MEMORY",
        "OTHER",
        "IMAGES",
        "WINDOW",
        "UP",
    ]);
    for it in executors {
        let (held, all) = (&it.held, &it.capacity);
        table.add_row([
            it.executor.to_string(),
            it.pool.to_string(),
            it.host.clone(),
            it.pid.to_string(),
            with_skew(status(it), it.clock_skew_ms),
            format!("{}/{}", processors(held), processors(all)),
            format!("{}/{}", size(held.memory_bytes), size(all.memory_bytes)),
            custom(held, all),
            it.images.len().to_string(),
            workers::window(&it.window),
            age(it.started_at_ms, now),
        ]);
    }
    table
}

/// The images that an executor has, without the end of their digests.
fn images(executor: &ExecutorHeartbeat) -> String {
    let short = |image: &ImageReference| {
        let digest = image.digest().map_or("", Digest::hex);
        let digest: String = digest.chars().take(DIGEST_SHOWN).collect();
        format!("{}@{digest}", image.place())
    };
    let names: Vec<String> = executor.image_names.iter().take(IMAGES_SHOWN).map(short).collect();
    let more = executor.image_names.len().saturating_sub(IMAGES_SHOWN);
    let more = if more > 0 { format!(", and {more} more (--json lists all)") } else { String::new() };
    format!("images of {}: {}{more}", executor.executor, names.join(", "))
}

pub(crate) fn processors(of: &Resources) -> f64 {
    of.cpu_millis as f64 / 1000.0
}

fn custom(held: &Resources, all: &Resources) -> String {
    let one = |name| format!("{name} {}/{}", held.custom(name), all.custom(name));
    all.custom.keys().map(one).collect::<Vec<_>>().join(" ")
}

pub(crate) fn status(executor: &ExecutorHeartbeat) -> String {
    match executor.status {
        ExecutorStatus::Ready => "ready".to_owned(),
        ExecutorStatus::Draining => "draining".to_owned(),
        ExecutorStatus::Gone => "gone".to_owned(),
        ExecutorStatus::Closed if executor.is_full() => "full".to_owned(),
        ExecutorStatus::Closed => format!("closed: {}", executor.window.red.join("; ")),
    }
}

/// The tone of an executor's status.
pub(crate) fn tone(executor: &ExecutorHeartbeat) -> Option<Tone> {
    match executor.status {
        ExecutorStatus::Ready => None,
        ExecutorStatus::Closed | ExecutorStatus::Draining => Some(Tone::Warning),
        ExecutorStatus::Gone => Some(Tone::Bad),
    }
}
