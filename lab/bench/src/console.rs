//! `forebay bench log`: how fast long console output is kept, followed and read again in windows.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    path::Path,
    time::{Duration, Instant},
};

use bus::EventKind;
use bytes::Bytes;
use clap::Args;
use client::{Blobs, LogWindow, WatchBody};
use command_line::failure::say;
use model::{BlobDigest, BuildId, BuildKey, BuildRequest, DigestFunction, Outcome, Sequence};
use remote::Remote;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    memory::{Memory, status_kib},
    report::BenchReport,
    statistics::percentile,
};

/// Options of `forebay bench log`, which starts a farm in a temporary folder.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Size of each log in MB
    #[arg(long, value_name = "MB", default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=1000))]
    megabytes: u64,
    /// Number of windows that are read of each log
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    windows: u64,
}

/// Number of lines in a window.
const LINES: u64 = 1000;
/// Figures below or above which the benchmark fails.
const MB_PER_S_MIN: f64 = 50.0;
const WINDOW_MS_MAX: f64 = 50.0;
const PEAK_MIB_MAX: f64 = 64.0;
/// Time limit for a build and for each answer.
const LIMIT: Duration = Duration::from_secs(300);
/// Logs by name, and whether their text is random.
const LOGS: [(&str, &str, bool); 2] =
    [("repeated", "a repeated line", false), ("random", "incompressible text", true)];
/// Length of a line with its end.
const LINE: usize = 64;

/// Runs `forebay bench log`.
pub(crate) async fn measure(args: &LogArgs) -> Result<BenchReport, BenchError> {
    let (mut figures, mut failures) = (Figures::default(), Vec::new());
    figures.field("megabytes", args.megabytes).field("windows", args.windows);
    let mut memory = Memory::default();
    for (key, name, random) in LOGS {
        // A farm of its own, so that its peaks of memory are those of this log.
        let farm = BenchFarm::start(1, &["--executors", "0"]).await?;
        let measured = of_log(&farm, args, random).await?;
        failures.extend(measured.failures(name));
        figures.part(key, measured.figures(name));
        memory.note(&farm);
        farm.stop().await;
    }
    Ok(BenchReport::new("", figures, memory).with_failures(failures))
}

/// What was measured of one log.
struct Measured {
    written_mb_per_s: f64,
    followed_mb_per_s: f64,
    /// Times of windows in milliseconds, sorted.
    windows: Vec<f64>,
    worker_mib: f64,
    gateway_mib: f64,
}

async fn of_log(farm: &BenchFarm, args: &LogArgs, random: bool) -> Result<Measured, BenchError> {
    let bytes = args.megabytes * 1_000_000;
    let file = farm.open_folder("text")?.join("log");
    let written =
        write_text(&file, bytes, random).map_err(|error| BenchError::new("writing the text", &error))?;
    let command = vec!["/bin/cat".to_owned(), file.display().to_string()];
    let id = BuildId::generate();
    let request = BuildRequest { id: Some(id), command, ..BuildRequest::default() };
    say(&format!("writing and following {} MB", args.megabytes));
    let begun = Instant::now();
    farm.client.create(&farm.group, &request, None).await?;
    let key = BuildKey { group: farm.group.clone(), id };
    let followed = tokio::time::timeout(LIMIT, follow(farm, &key)).await;
    let followed = followed.map_err(|error| BenchError::new("following the build", &error))??;
    let follow_seconds = begun.elapsed().as_secs_f64();
    if followed.digest != written {
        return Err(BenchError::plain(format!("followed {}, not {written}", followed.digest)));
    }
    say(&format!("reading {} windows", args.windows));
    let windows = read_windows(farm, &key, args.windows).await?;
    let peak = |name: &str| {
        let pid = farm.endpoints.processes.get(name);
        pid.and_then(|pid| status_kib(*pid, "VmHWM")).unwrap_or_default() / 1024.0
    };
    Ok(Measured {
        written_mb_per_s: bytes as f64 / 1e6 / followed.wall_seconds,
        followed_mb_per_s: bytes as f64 / 1e6 / follow_seconds,
        windows,
        worker_mib: peak("worker"),
        gateway_mib: peak("gateway"),
    })
}

/// Writes lines of text into a file; returns their digest.
fn write_text(path: &Path, bytes: u64, random: bool) -> io::Result<BlobDigest> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut file = BufWriter::new(File::create(path)?);
    let (mut sum, mut state) = (DigestFunction::Sha256.hasher(), 1_u64);
    let mut line = [b'x'; LINE];
    if let Some(end) = line.last_mut() {
        *end = b'\n';
    }
    let mut left = bytes;
    while left > 0 {
        if random {
            for letter in line.iter_mut().take(LINE - 1) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *letter = LETTERS.get((state >> 58) as usize).copied().unwrap_or_default();
            }
        }
        let part = line.get(..usize::try_from(left).unwrap_or(LINE)).unwrap_or(&line);
        file.write_all(part)?;
        sum.update(part);
        left -= part.len() as u64;
    }
    file.flush()?;
    Ok(sum.finish())
}

struct Followed {
    digest: BlobDigest,
    wall_seconds: f64,
}

/// Blobs of the store that the gateway reads.
struct GatewayBlobs(Remote);

impl Blobs for GatewayBlobs {
    async fn read(&mut self, blob: &BlobDigest) -> Result<Bytes, String> {
        self.0.read(blob).await.map(Bytes::from).map_err(|error| error.to_string())
    }
}

/// Follows a build to its end, and reads its frames from the store of the gateway.
async fn follow(farm: &BenchFarm, key: &BuildKey) -> Result<Followed, BenchError> {
    let mut blobs = GatewayBlobs(farm.remote().await?);
    let mut watch = farm.client.watch(key, Sequence(0), &[EventKind::Console, EventKind::Lifecycle]);
    let mut sum = DigestFunction::Sha256.hasher();
    while let Some(event) = watch.next().await? {
        match event.body {
            WatchBody::Console(chunk) => sum.update(&chunk.data),
            WatchBody::Frame(mut frame) => {
                frame.read(&mut blobs).await;
                if let Some(line) = frame.lost_line() {
                    return Err(BenchError::plain(line));
                }
                frame.parts().iter().for_each(|part| sum.update(part.data));
            }
            WatchBody::Lifecycle(record) => {
                let Some(result) = record.result() else { continue };
                if result.outcome != Outcome::Succeeded {
                    return Err(BenchError::plain(format!("the build ended as {}", result.outcome.as_str())));
                }
                return Ok(Followed { digest: sum.finish(), wall_seconds: result.wall_seconds });
            }
            WatchBody::Tool(_) | WatchBody::Bazel(_) => {}
        }
    }
    Err(BenchError::plain("the build did not end"))
}

/// Reads windows all over the log. Returns the times in milliseconds, sorted.
async fn read_windows(farm: &BenchFarm, key: &BuildKey, count: u64) -> Result<Vec<f64>, BenchError> {
    let url = farm.endpoints.http.as_deref().unwrap_or_default();
    let address = url.trim_start_matches("http://");
    let path = format!("/v1/builds/{}/{}/log", key.group, key.id);
    let mut times = Vec::new();
    let mut total = None::<u64>;
    for number in 0..=count {
        // Spread over the log, and no two neighbours in a row; the first one only finds out how long it is.
        let lines = total.map_or(0, |lines| lines.saturating_sub(LINES) * (number * 7919 % count) / count);
        let begun = Instant::now();
        let body = get(address, &format!("{path}?line={}&lines={LINES}", lines + 1)).await;
        let took = begun.elapsed();
        let body = body.map_err(|error| BenchError::new("reading a window", &error))?;
        let window: LogWindow =
            serde_json::from_slice(&body).map_err(|error| BenchError::new("reading a window", &error))?;
        if window.lines.len() as u64 != LINES {
            return Err(BenchError::plain(format!("a window has {} lines", window.lines.len())));
        }
        total = Some(window.total_lines);
        times.push(took.as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// The body of the answer to one request on a connection of its own.
async fn get(address: &str, path: &str) -> io::Result<Vec<u8>> {
    let mut connection = TcpStream::connect(address).await?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await?;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    Ok(end.map(|end| answer.split_off(end + 4)).unwrap_or_default())
}

impl Measured {
    fn figures(&self, name: &str) -> Figures {
        let mut figures = Figures::default();
        let of = |what: &str| format!("{name}: {what}");
        figures
            .figure("written_mb_per_s", &of("written by the build"), self.written_mb_per_s, "MB/s")
            .figure("followed_mb_per_s", &of("followed to its end"), self.followed_mb_per_s, "MB/s")
            .figure("window_p50_ms", &of("window, p50"), percentile(&self.windows, 50), "ms")
            .figure("window_p95_ms", &of("window, p95"), percentile(&self.windows, 95), "ms")
            .figure("window_max_ms", &of("window, slowest"), percentile(&self.windows, 100), "ms")
            .figure("worker_peak_mib", &of("peak memory of worker"), self.worker_mib, "MiB")
            .figure("gateway_peak_mib", &of("peak memory of gateway"), self.gateway_mib, "MiB");
        figures
    }

    /// Figures that are worse than expected.
    fn failures(&self, name: &str) -> Vec<String> {
        let slowest = percentile(&self.windows, 100);
        let checks = [
            (self.written_mb_per_s >= MB_PER_S_MIN, format!("{:.0} MB/s written", self.written_mb_per_s)),
            (slowest <= WINDOW_MS_MAX, format!("a window took {slowest:.0} ms")),
            (self.worker_mib <= PEAK_MIB_MAX, format!("the worker used {:.0} MiB", self.worker_mib)),
            (self.gateway_mib <= PEAK_MIB_MAX, format!("the gateway used {:.0} MiB", self.gateway_mib)),
        ];
        checks.into_iter().filter(|(fits, _)| !fits).map(|(_, what)| format!("{name}: {what}")).collect()
    }
}
