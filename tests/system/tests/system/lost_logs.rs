//! Console output that the store does not take or give back: the build goes on, and readers learn what is missing.

use std::{
    cell::Cell,
    fs,
    time::{Duration, Instant},
};

use bus::{Chunk, EventKind, GuardedWriter};
use bytes::Bytes;
use cas::Cas;
use client::{WatchBody, WatchEvent};
use console_log::{Packer, Raw, pack};
use farm::{Farm, SOON, SmallDisk};
use model::{BlobDigest, BuildKey, DigestFunction, Outcome, OutputStream, State};
use serde_json::Value;

use crate::{
    check::{BOUND, ended_as, processes_of, script, until},
    http::client,
    jobs::store,
    log_windows::{self, ask, window},
};

/// Time after which a store that takes nothing has lost output, with a wide margin: a frame is retried for 30 s.
const LOST: Duration = Duration::from_secs(60);

/// Starts a farm whose store is on `disk`.
async fn farm_on(disk: &SmallDisk) -> Farm {
    let farm =
        Farm::builder().only(&[]).env("FOREBAY_CONSOLE_BYTES_MAX", "100000").workspaces(1).start().await;
    let store = disk.path().join("cas");
    fs::create_dir(&store).unwrap();
    fs::create_dir_all(farm.data()).unwrap();
    std::os::unix::fs::symlink(&store, farm.data().join("cas")).unwrap();
    for service in ["enqueuer", "dispatcher", "reaper", "gateway", "worker"] {
        farm.keep(farm.spawn(service).await);
    }
    farm
}

fn is_gap(event: &WatchEvent) -> bool {
    matches!(&event.body, WatchBody::Console(chunk) if chunk.dropped.is_some_and(|bytes| bytes > 0))
}

#[tokio::test]
async fn output_that_a_full_store_does_not_take_is_a_gap() {
    let Some(disk) = SmallDisk::mount(20) else { return };
    let farm = farm_on(&disk).await;
    let fill = disk.fill();
    let go = farm.folder().join("go");
    let wait = format!("seq 100000; until [ -e {} ]; do sleep 0.1; done; seq 100001 300000", go.display());
    let key = farm.submit("g", script(&wait)).await;
    let gap = farm.wait_event(&key, LOST, &[EventKind::Console], is_gap).await;
    fs::remove_file(fill).unwrap();
    fs::write(&go, "").unwrap();
    let record = ended_as(&farm, &key, Outcome::Succeeded).await;
    let log = record.result().unwrap().log.clone();
    let WatchBody::Console(gap) = gap.body else { panic!("{gap:?}") };
    assert_eq!(gap.dropped, Some(log.dropped_bytes));
    assert_eq!((gap.offset, log.stdout_bytes - log.bus_bytes > log.dropped_bytes), (log.bus_bytes, true));
    let tail = window(&farm, &key, "?tail=2000").await;
    assert_eq!(
        (&tail["lines"][1999]["text"], &tail["total_bytes"]),
        (&"300000".into(), &log.stdout_bytes.into())
    );
    let first_after = tail["total_lines"].as_u64().unwrap() - 200_000;
    let around = window(&farm, &key, &format!("?line={}&lines=20", first_after - 5)).await;
    assert_eq!(around["missing"][0]["bytes"], log.dropped_bytes);
    let (status, text) = ask(&farm, &key, "").await;
    let said = format!("{} bytes of output cannot be read", log.dropped_bytes);
    assert!(status == 200 && text.contains(&said) && text.ends_with("\n300000\n"), "{status}");
    let printed = farm.cli(&["logs", &key.id.to_string()]).await;
    let said = format!("{} bytes of stdout are missing", log.dropped_bytes);
    assert!(printed.stderr.contains(&said) && printed.stdout.ends_with("\n300000\n"), "{}", printed.stderr);
}

/// Waits until the processes of the build have written much, and then nothing for half a second.
async fn is_held_up(key: &BuildKey) {
    let written = |pid: u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap_or_default();
        line.parse::<u64>().unwrap_or_default()
    };
    let last = Cell::new((0, Instant::now()));
    let held_up = || {
        let now = processes_of(key.id).into_iter().map(written).max().unwrap_or_default();
        if last.get().0 != now {
            last.set((now, Instant::now()));
        }
        now > 4 << 20 && last.get().1.elapsed() > Duration::from_millis(500)
    };
    until("the command is held up", SOON, held_up).await;
}

#[tokio::test]
async fn a_full_store_delays_no_cancel() {
    let Some(disk) = SmallDisk::mount(20) else { return };
    let farm = farm_on(&disk).await;
    let _fill = disk.fill();
    // A full disk has room for frames of output that compresses well.
    let key = farm.submit("g", script("exec cat /dev/urandom")).await;
    is_held_up(&key).await;
    farm.client().cancel(&key, None).await.unwrap();
    ended_as(&farm, &key, Outcome::Cancelled).await;
    // The only workspace is free again, though the store would be retried for 30 s.
    let next = farm.submit("g", script("true")).await;
    farm.wait_until(&next, Duration::from_secs(10), |record| record.state() == State::Finished).await;
}

#[tokio::test]
async fn a_watch_resumed_between_frames_has_every_byte_once() {
    let farm = log_windows::farm().await;
    let key = farm.submit("g", script("seq 700000")).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let url = format!("{}/v1/builds/{}/{}/events?kind=console", farm.http_url(), key.group, key.id);
    let whole = events(&format!("{url}&from=0")).await;
    let expected = (1..=700_000).fold(String::new(), |text, number| text + &format!("{number}\n"));
    assert!(text_of(&whole) == expected);
    let frames: Vec<usize> = (0..whole.len()).filter(|at| whole[*at]["kind"] == "frame").collect();
    assert!(frames.len() >= 4, "{} frames", frames.len());
    for at in [frames[0], frames[frames.len() / 2], frames[frames.len() - 2]] {
        let rest = events(&format!("{url}&from={}", whole[at]["position"])).await;
        assert!(rest == whole[at + 1..], "{} events after {at}", rest.len());
        assert!(text_of(&whole[..=at]) + &text_of(&rest) == expected);
    }
}

/// The server-sent events at `url`.
async fn events(url: &str) -> Vec<Value> {
    let text = client().get(url).send().await.unwrap().text().await.unwrap();
    text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data:")?).ok()).collect()
}

fn text_of(events: &[Value]) -> String {
    let parts = |event: &Value| event["parts"].as_array().cloned().unwrap_or_else(|| vec![event.clone()]);
    let parts = events.iter().flat_map(parts);
    parts.map(|part| part["text"].as_str().unwrap_or_default().to_owned()).collect()
}

/// A frame with the lines `text`, after `offset` bytes of stdout.
fn frame(text: &str, offset: u64) -> Raw {
    let mut packer = Packer::after(offset, 0);
    packer.push(OutputStream::Stdout, text.as_bytes());
    packer.rest().unwrap()
}

/// Writes frames into the log of a running build.
struct Forger {
    writer: GuardedWriter,
    store: Cas,
    offset: u64,
}

impl Forger {
    async fn put(&self, blob: Bytes) -> BlobDigest {
        self.store.put_bytes(DigestFunction::Sha256, blob).await.unwrap()
    }

    /// Publishes that `bytes` of output with `lines` line ends are in `blob`.
    async fn publish(&mut self, blob: BlobDigest, bytes: u64, lines: u64) {
        let offset = self.offset;
        self.writer.write(Chunk::Frame { blob, offset, bytes, lines }, SOON).await.unwrap();
        self.offset = offset.saturating_add(bytes);
    }
}

#[tokio::test]
async fn a_forged_frame_is_lost_output() {
    let farm = log_windows::farm().await;
    let go = farm.folder().join("go");
    let key = farm.submit("g", script(&format!("until [ -e {} ]; do sleep 0.1; done", go.display()))).await;
    let (guard, record) = farm.wait_until(&key, SOON, |record| record.state() == State::InProgress).await;
    let writer = GuardedWriter::new(farm.bus().clone(), &record, guard);
    let mut forger = Forger { writer, store: store(&farm), offset: 0 };
    let good = pack(&frame("first\n", 0)).unwrap();
    let good = forger.put(good).await;
    forger.publish(good, 6, 1).await;
    let packed = pack(&frame("a\nb\n", 6)).unwrap();
    let frames = [
        (
            "wrong digest",
            BlobDigest { size: packed.len() as u64, ..DigestFunction::Sha256.digest(b"elsewhere") },
        ),
        ("wrong bytes", forger.put(pack(&frame("a\nb\nc", 10)).unwrap()).await),
        ("wrong lines", forger.put(pack(&frame("abc\n", 14)).unwrap()).await),
        ("wrong offset", forger.put(packed.clone()).await),
        ("bomb", forger.put(pack(&frame_of_zeros(1 << 30)).unwrap()).await),
        ("truncated", forger.put(packed.slice(..packed.len() - 5)).await),
        (
            "not zstd",
            forger.put(Bytes::from_static(b"no frame at all, though it is long enough for one")).await,
        ),
        ("too large", forger.put(Bytes::from(vec![7; 3 << 20])).await),
    ];
    for (_, blob) in &frames {
        forger.publish(*blob, 4, 2).await;
    }
    // Sizes that no frame has.
    forger.publish(good, u64::MAX, 1).await;
    forger.offset = 6 + 4 * frames.len() as u64;
    forger.publish(good, 1, 7).await;
    forger.offset -= 1;
    let last = forger.put(pack(&frame("last\n", forger.offset)).unwrap()).await;
    forger.publish(last, 5, 1).await;
    fs::write(&go, "").unwrap();
    farm.wait_finished(&key, BOUND).await;

    let found = window(&farm, &key, "?lines=100").await;
    let texts: Vec<_> = found["lines"].as_array().unwrap().iter().map(|line| line["text"].clone()).collect();
    assert_eq!(texts, ["first", "last"], "{found}");
    let missing = found["missing"].as_array().unwrap();
    assert_eq!(missing.len(), frames.len() + 2, "{found}");
    for (gap, (what, _)) in missing.iter().zip(&frames) {
        assert_eq!((&gap["bytes"], &gap["lines"]), (&4.into(), &2.into()), "{what}: {gap}");
        assert!(!gap["reason"].as_str().unwrap().is_empty(), "{what}: {gap}");
    }
    assert_eq!(window(&farm, &key, "?tail=1").await["lines"][0]["text"], "last");
    let (status, text) = ask(&farm, &key, "").await;
    let gaps = text.matches("4 bytes of output cannot be read").count();
    assert!(status == 200 && gaps == frames.len() && text.ends_with("last\n"), "{status}: {text}");
    let id = key.id.to_string();
    for args in [&["logs", &id, "--lines", "100"][..], &["logs", &id], &["watch", &id, "--kind", "console"]] {
        let printed = farm.cli(args).await;
        assert!(printed.code == 0 && printed.stdout.contains("last\n"), "{args:?}: {printed:?}");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", farm.pid("gateway"))).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 200 << 10, "the gateway used {peak} kB");
}

fn frame_of_zeros(bytes: usize) -> Raw {
    Raw { data: vec![0; bytes], ..Raw::default() }
}
