//! Watching: every event once and in order, from any position, through all faults of the bus.

use std::{collections::BTreeSet, sync::atomic::Ordering};

use bus::{Bus, EventKind, Patience};
use client::{Client, Watch, WatchBody, WatchEvent};
use farm::{Farm, SOON};
use model::{BuildKey, BuildRequest, Context, Outcome, Sequence};

use crate::check::{ended_as, script};

/// Output in many chunks, for about a second.
const TALK: &str = "i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.025; done";

async fn farm() -> Farm {
    Farm::builder().without("gateway").start().await
}

/// Creates a build with events of every kind.
async fn talk(farm: &Farm) -> BuildKey {
    let source = farm.folder().join("source");
    std::fs::create_dir_all(&source).unwrap();
    let context = Context::Directory { path: source.to_str().unwrap().to_owned(), ignore_files: false };
    farm.submit("g", BuildRequest { context, ..script(TALK) }).await
}

async fn rest(watch: &mut Watch) -> Vec<WatchEvent> {
    let mut all = Vec::new();
    let read = async {
        while let Some(event) = watch.next().await.unwrap() {
            all.push(event);
        }
    };
    tokio::time::timeout(SOON, read).await.unwrap();
    all
}

async fn positions(farm: &Farm, key: &BuildKey) -> Vec<Sequence> {
    farm.stored(key).await.iter().map(|stored| stored.sequence).collect()
}

fn positions_of(events: &[WatchEvent]) -> Vec<Sequence> {
    events.iter().map(|event| event.position).collect()
}

fn text(events: &[WatchEvent]) -> String {
    let data = events.iter().filter_map(|event| match &event.body {
        WatchBody::Console(chunk) => Some(chunk.data.to_vec()),
        WatchBody::Lifecycle(_) | WatchBody::Frame(_) | WatchBody::Tool(_) | WatchBody::Bazel(_) => None,
    });
    String::from_utf8(data.flatten().collect()).unwrap()
}

fn all_lines() -> String {
    (0..40).fold(String::new(), |text, number| format!("{text}line {number}\n"))
}

#[tokio::test]
async fn a_watcher_sees_everything_once_while_it_happens() {
    let farm = farm().await;
    let key = talk(&farm).await;
    let mut first = farm.client().watch(&key, Sequence(0), &[]);
    let mut second = farm.client().watch(&key, Sequence(0), &[]);
    let (first, second) = tokio::join!(rest(&mut first), rest(&mut second));
    assert_eq!(positions_of(&first), positions(&farm, &key).await);
    assert_eq!(first, second);
    assert_eq!(text(&first), all_lines());
    assert!(first.last().unwrap().is_last());
    let kinds: BTreeSet<EventKind> = first.iter().map(WatchEvent::kind).collect();
    assert_eq!(kinds.len(), 3);
}

#[tokio::test]
async fn a_watcher_that_stops_and_resumes_misses_none_and_sees_none_twice() {
    let farm = farm().await;
    let key = talk(&farm).await;
    let mut seen: Vec<WatchEvent> = Vec::new();
    // Stops after every third event, and continues after it.
    loop {
        let after = seen.last().map_or(Sequence(0), |event| event.position);
        let mut watch = farm.client().watch(&key, after, &[]);
        let mut ended = false;
        for _ in 0..3 {
            match tokio::time::timeout(SOON, watch.next()).await.unwrap().unwrap() {
                Some(event) => seen.push(event),
                None => ended = true,
            }
        }
        if ended {
            break;
        }
    }
    assert_eq!(positions_of(&seen), positions(&farm, &key).await);
    assert_eq!(text(&seen), all_lines());
}

#[tokio::test]
async fn kinds_can_be_chosen_and_the_past_be_read() {
    let farm = farm().await;
    let key = talk(&farm).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let all = rest(&mut farm.client().watch(&key, Sequence(0), &[])).await;
    assert_eq!(positions_of(&all), positions(&farm, &key).await);
    for kind in EventKind::ALL {
        let some = rest(&mut farm.client().watch(&key, Sequence(0), &[kind])).await;
        let wanted: Vec<WatchEvent> = all.iter().filter(|event| event.kind() == kind).cloned().collect();
        assert_eq!(some, wanted);
    }
    for (number, event) in all.iter().enumerate() {
        let behind = rest(&mut farm.client().watch(&key, event.position, &[])).await;
        assert_eq!(behind, all[number + 1..]);
    }
    let missing = BuildKey { group: "g".parse().unwrap(), id: model::BuildId::generate() };
    let error = farm.client().watch(&missing, Sequence(0), &[]).next().await.unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
}

#[tokio::test]
async fn a_watcher_sees_everything_once_through_restarts_of_nats_server() {
    let farm = Farm::builder().without("gateway").lease_ttl(10).start().await;
    let key = talk(&farm).await;
    let mut watch = farm.client().watch(&key, Sequence(0), &[]);
    let mut seen = Vec::new();
    for _ in 0..2 {
        for _ in 0..8 {
            seen.push(tokio::time::timeout(SOON, watch.next()).await.unwrap().unwrap().unwrap());
        }
        farm.servers.kill_nats();
        farm.servers.start_nats().await;
    }
    seen.extend(rest(&mut watch).await);
    assert_eq!(positions_of(&seen), positions(&farm, &key).await);
    assert_eq!(text(&seen), all_lines());
}

#[tokio::test]
async fn events_come_over_http_and_resume_behind_the_last_seen() {
    let farm = Farm::all().await;
    let key = talk(&farm).await;
    let url = format!("{}/v1/builds/{}/{}/events", farm.http_url(), key.group, key.id);
    let http = crate::http::client();
    let whole = http.get(&url).send().await.unwrap().text().await.unwrap();
    let ids = |text: &str| -> Vec<Sequence> {
        text.lines()
            .filter_map(|line| Some(Sequence(line.strip_prefix("id:")?.trim().parse().unwrap())))
            .collect()
    };
    let wanted = positions(&farm, &key).await;
    assert_eq!(ids(&whole), wanted);
    let middle = wanted[wanted.len() / 2];
    let resumed = http.get(&url).header("Last-Event-ID", middle.to_string()).send().await.unwrap();
    assert_eq!(ids(&resumed.text().await.unwrap()), wanted[wanted.len() / 2 + 1..]);
    let last = http.get(format!("{url}?from={}", wanted.last().unwrap())).send().await.unwrap();
    assert_eq!(last.status().as_u16(), 204);
    let console = http.get(format!("{url}?kind=console")).send().await.unwrap().text().await.unwrap();
    assert!(console.contains("event: console") && !console.contains("event: lifecycle"), "{console}");
    let log = http.get(url.replace("/events", "/log")).send().await.unwrap().text().await.unwrap();
    assert_eq!(log, all_lines());
}

#[tokio::test]
async fn forebay_watch_shows_output_and_goes_on_behind_a_position() {
    let farm = farm().await;
    let key = talk(&farm).await;
    let name = key.to_string();
    let whole = farm.cli(&["watch", &name, "--json"]).await;
    let lines: Vec<serde_json::Value> =
        whole.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<Sequence> =
        lines.iter().map(|line| Sequence(line["position"].as_u64().unwrap())).collect();
    assert_eq!(found, positions(&farm, &key).await);
    assert_eq!(whole.code, 0);
    let from = found[found.len() - 3].to_string();
    let end = farm.cli(&["watch", &name, "--json", "--from", &from]).await;
    assert_eq!(end.stdout.lines().count(), 2, "{end:?}");
    let console = farm.cli(&["watch", &name, "--kind", "console"]).await;
    assert_eq!((console.stdout, console.code), (all_lines(), 0));
}

/// All selections of kinds besides the changes of state.
fn selections() -> Vec<Vec<EventKind>> {
    let others = [EventKind::Console, EventKind::Tool, EventKind::Bazel];
    let chosen = |bits: u8| others.iter().enumerate().filter(move |(at, _)| bits & (1 << at) != 0);
    (0..8).map(|bits| chosen(bits).map(|(_, kind)| *kind).chain([EventKind::Lifecycle]).collect()).collect()
}

#[tokio::test]
async fn every_selection_of_kinds_comes_whole_and_in_order() {
    let farm = Farm::builder().without("gateway").lease_ttl(10).start().await;
    let key = talk(&farm).await;
    let client = farm.client();
    let mut watches: Vec<Watch> =
        selections().iter().map(|kinds| client.watch(&key, Sequence(0), kinds)).collect();
    let mut first = Vec::new();
    for watch in &mut watches {
        first.push(tokio::time::timeout(SOON, watch.next()).await.unwrap().unwrap().unwrap());
    }
    farm.servers.kill_nats();
    farm.servers.start_nats().await;
    let live = futures::future::join_all(watches.iter_mut().map(rest)).await;
    let all = rest(&mut client.watch(&key, Sequence(0), &[])).await;
    assert_eq!(text(&all), all_lines());
    for ((kinds, first), live) in selections().iter().zip(first).zip(live) {
        let wanted: Vec<&WatchEvent> = all.iter().filter(|event| kinds.contains(&event.kind())).collect();
        assert_eq!([first].iter().chain(&live).collect::<Vec<_>>(), wanted, "live {kinds:?}");
        let past = rest(&mut client.watch(&key, Sequence(0), kinds)).await;
        assert_eq!(past.iter().collect::<Vec<_>>(), wanted, "past {kinds:?}");
    }
}

#[tokio::test]
async fn a_watcher_receives_only_what_it_asks_for() {
    let farm = farm().await;
    let key = farm
        .submit("g", script("i=0; while [ $i -lt 20 ]; do head -c 150000 /dev/zero; i=$((i+1)); done"))
        .await;
    let receive = async |kinds: &[EventKind]| {
        let bus = Bus::connect(farm.bus().url(), "watcher", Patience::Wait).await.unwrap();
        let events = rest(&mut Client::new(bus.clone()).watch(&key, Sequence(0), kinds)).await;
        (events.len(), bus.client().statistics().in_bytes.load(Ordering::Relaxed))
    };
    let (states, all) = tokio::join!(receive(&[EventKind::Lifecycle]), receive(&[]));
    assert!(states.0 == 3 && all.0 > 5, "{states:?} {all:?}");
    assert!(states.1 < 100_000, "{} bytes arrived while the build ran", states.1);
    assert!(all.1 > 3_000_000, "{} bytes", all.1);
    for kinds in [&[EventKind::Lifecycle][..], &[EventKind::Tool], &[EventKind::Bazel, EventKind::Tool]] {
        let (_, bytes) = receive(kinds).await;
        assert!(bytes < 100_000, "{bytes} bytes arrived for {kinds:?}");
    }
}

#[tokio::test]
async fn output_can_be_narrowed_to_a_stream() {
    let farm = Farm::all().await;
    let key = farm.submit("g", script("echo good; echo bad >&2; echo more")).await;
    let url = format!("{}/v1/builds/{}/{}/events?stream=stderr", farm.http_url(), key.group, key.id);
    let events = crate::http::client().get(&url).send().await.unwrap().text().await.unwrap();
    assert!(events.contains("bad") && events.contains("event: lifecycle"), "{events}");
    assert!(!events.contains("\"text\":\"good"), "{events}");
    let shown = farm.cli(&["watch", &key.to_string(), "--stream", "stdout"]).await;
    assert_eq!(shown.stdout, "good\nmore\n");
    assert!(!shown.stderr.contains("bad"), "{shown:?}");
    let wrong = farm.cli(&["watch", &key.to_string(), "--stream", "both"]).await;
    assert!(wrong.code != 0 && wrong.stderr.contains("expected stdout or stderr"), "{wrong:?}");
}

#[tokio::test]
async fn many_watchers_cost_the_server_no_consumers() {
    let farm = farm().await;
    let key = talk(&farm).await;
    let mut watches: Vec<Watch> =
        (0..200).map(|_| farm.client().watch(&key, Sequence(0), &[EventKind::Lifecycle])).collect();
    for watch in &mut watches {
        tokio::time::timeout(SOON, watch.next()).await.unwrap().unwrap().unwrap();
    }
    let mut stream = farm.bus().jetstream().get_stream("FOREBAY_EVENTS").await.unwrap();
    let consumers = stream.info().await.unwrap().state.consumer_count;
    assert!(consumers < 5, "{consumers} consumers");
    let ends = futures::future::join_all(watches.iter_mut().map(rest)).await;
    assert!(ends.iter().all(|events| events.len() == 2));
}
