//! Waiting clients see their queue position and the expected end of the wait.

use std::time::Duration;

use client::{Followed, QueuePlace, WatchFilter, WatchKind};
use farm::{Farm, SOON};
use futures::StreamExt as _;
use model::{BuildId, BuildKey, BuildRequest, Millis, Sequence, StartBasis, State, WhyReply};

use crate::{
    check::why_when,
    estimates::{labelled, teach},
};

/// Queues builds that sleep for `seconds` each, one after the other.
async fn queue(farm: &Farm, kinds: &[&BuildRequest]) -> Vec<BuildKey> {
    let mut keys = Vec::new();
    for request in kinds {
        let build = BuildRequest { id: Some(BuildId::generate()), ..(*request).clone() };
        keys.push(farm.submit("g", build).await);
    }
    keys
}

#[tokio::test]
async fn a_build_starts_about_when_it_was_expected_to() {
    let farm = Farm::builder().workspaces(2).without("gateway").start().await;
    let (short, long) = (labelled("short", "sleep 0.3"), labelled("long", "sleep 1.2"));
    teach(&farm, "g", &short, 300..1000).await;
    teach(&farm, "g", &long, 1200..2400).await;
    let kinds = [&long, &short, &short, &long, &short, &long, &short, &short, &short];
    let keys = queue(&farm, &kinds).await;
    let last = keys.last().unwrap();
    let is_indexed = |why: &WhyReply| why.waiting.as_ref().is_some_and(|waiting| waiting.workspaces == 2);
    let reply = why_when(&farm, last, is_indexed).await;
    let asked = Millis::of_this_machine();
    let waiting = reply.waiting.unwrap();
    assert_eq!(waiting.expected_by, Some(StartBasis::Estimates));
    assert!(reply.expected_ms.is_some_and(|ms| (300..1000).contains(&ms)), "{:?}", reply.expected_ms);
    assert!(waiting.ahead_ms.is_some_and(|ms| ms > 2000), "{waiting:?}");
    let expected = waiting.expected_start_ms.unwrap();
    let record = farm.wait_finished(last, SOON).await;
    let started = record.invocation().unwrap().started_at_ms;
    let off = started.since(expected).max(expected.since(started));
    let wait = started.since(asked);
    assert!(wait > Duration::from_millis(1500), "{wait:?}");
    assert!(off < wait / 4 + Duration::from_millis(400), "{off:?} of {wait:?} off");
    let told = farm.cli(&["why", &last.id.to_string()]).await;
    assert!(told.stdout.contains("it is not waiting"), "{}", told.stdout);
}

/// Queues five builds of one second for two workspaces: the last waits for two seconds.
async fn waiting(farm: &Farm) -> BuildKey {
    let second = labelled("second", "sleep 1");
    teach(farm, "g", &second, 1000..2000).await;
    queue(farm, &[&second; 5]).await.pop().unwrap()
}

#[tokio::test]
async fn a_watch_that_is_taken_up_again_tells_the_place_too() {
    let farm = Farm::builder().workspaces(2).without("gateway").start().await;
    let last = waiting(&farm).await;
    // All its stored events were seen: nothing more arrives until it starts.
    let (enqueued, record) = farm.wait_until(&last, SOON, |record| record.state() == State::Enqueued).await;
    assert_eq!(record.state(), State::Enqueued);
    let mut following = farm.client().follow(&last, enqueued, &WatchFilter::default());
    let next = tokio::time::timeout(SOON, following.next()).await.unwrap().unwrap();
    let Some(Followed::Queue(place)) = next else { panic!("{next:?} and not its place") };
    assert!(place.place >= 1 && place.expected_start_ms.is_some(), "{place:?}");
}

#[tokio::test]
async fn a_watcher_sees_its_place_and_nothing_is_stored_of_it() {
    let farm = Farm::builder().workspaces(2).without("gateway").start().await;
    let last = waiting(&farm).await;
    let id = last.id.to_string();
    let shown = tokio::spawn(farm.command(&["watch", &id]).output());
    let mut following = farm.client().follow(&last, Sequence(0), &WatchFilter::of_kinds(&[WatchKind::Queue]));
    let mut places: Vec<QueuePlace> = Vec::new();
    let read = async {
        while let Some(followed) = following.next().await.unwrap() {
            match followed {
                Followed::Queue(place) => places.push(place),
                Followed::Event(event) => panic!("{event:?} was not requested"),
                Followed::Unplaced(why) => panic!("{why}"),
            }
        }
    };
    tokio::time::timeout(SOON, read).await.expect("it ends with the build");
    assert!(!places.is_empty() && places.is_sorted_by(|a, b| a.place >= b.place), "{places:#?}");
    let first = &places[0];
    assert!(first.expected_start_ms.is_some_and(|at| at < Millis::of_this_machine()), "{first:?}");
    assert_eq!(farm.stored(&last).await.len(), 3, "queued, started, finished");
    let shown = shown.await.unwrap().unwrap();
    let text = String::from_utf8(shown.stderr).unwrap();
    assert!(text.contains(" in the queue, starts in about "), "{text}");
    // No positions are requested for finished builds.
    let lines = farm.cli(&["watch", &id, "--json"]).await;
    assert!(!lines.stdout.contains("\"kind\":\"queue\""), "{}", lines.stdout);
}

#[tokio::test]
async fn a_start_that_has_passed_is_late_and_expected_again() {
    let farm = Farm::builder().workspaces(1).without("gateway").start().await;
    teach(&farm, "g", &labelled("short", "sleep 0.3"), 300..1000).await;
    // It runs far longer than other builds of its kind.
    let running = queue(&farm, &[&labelled("short", "sleep 600")]).await.pop().unwrap();
    farm.wait_until(&running, SOON, |record| record.state() == State::InProgress).await;
    let last = queue(&farm, &[&labelled("short", "true")]).await.pop().unwrap();
    let mut following = farm.client().follow(&last, Sequence(0), &WatchFilter::of_kinds(&[WatchKind::Queue]));
    let late = async {
        loop {
            if let Some(Followed::Queue(place)) = following.next().await.unwrap()
                && place.late
            {
                return place;
            }
        }
    };
    let late =
        tokio::time::timeout(SOON, late).await.expect("an estimate in the past is not repeated forever");
    assert!(late.expected_start_ms.is_some() && late.place == 1, "{late:?}");
}

#[tokio::test]
async fn places_come_as_server_sent_events_without_an_id() {
    let farm = Farm::builder().workspaces(2).start().await;
    let last = waiting(&farm).await;
    let url = format!("{}/v1/builds/g/{}/events", farm.http_url(), last.id);
    let both = format!("{url}?kind=queue&kind=lifecycle");
    let mut body = crate::http::client().get(&both).send().await.unwrap().bytes_stream();
    let mut text = String::new();
    let read = async {
        while let Some(part) = body.next().await {
            text.push_str(std::str::from_utf8(&part.unwrap()).unwrap());
        }
    };
    tokio::time::timeout(SOON, read).await.expect("it ends with the build");
    let events: Vec<&str> = text.split("\n\n").filter(|event| event.contains("event: queue")).collect();
    assert!(!events.is_empty(), "{text}");
    for event in events {
        assert!(!event.contains("id:") && event.contains("\"kind\":\"queue\""), "{event}");
        assert!(event.contains("\"place\":") && event.contains("\"expected_start_ms\":"), "{event}");
    }
    assert!(text.contains("event: lifecycle") && !text.contains("event: console"), "{text}");
    let refused = crate::http::client().get(format!("{url}?kind=place")).send().await.unwrap();
    assert_eq!(refused.status(), 400);
}

/// Returns the number of requests for positions.
async fn asked(farm: &Farm) -> String {
    let urls = farm.metrics_urls();
    let (_, url) = urls.iter().find(|(name, _)| name.starts_with("enqueuer")).unwrap();
    let text = crate::http::client().get(url).send().await.unwrap().text().await.unwrap();
    text.lines().filter(|line| line.contains("endpoint=\"why\"")).collect()
}

#[tokio::test]
async fn nobody_asks_for_a_build_that_starts_at_once() {
    let farm = Farm::builder().without("gateway").start().await;
    // On a machine that is busy with other tests it may take a while.
    for _ in 0..10 {
        let before = asked(&farm).await;
        let group = "at-once";
        let done = farm.cli(&["submit", "--group", group, "--follow", "--", "true"]).await;
        assert_eq!(done.code, 0, "{}", done.stderr);
        let list = farm.client().list(&group.parse().unwrap(), &model::ListRequest::default()).await;
        let record = list.unwrap().builds.remove(0).record;
        let waited = record.invocation().unwrap().started_at_ms.since(record.build.submitted_at_ms);
        if waited < Duration::from_millis(300) {
            assert_eq!(asked(&farm).await, before);
            return;
        }
    }
    panic!("no build starts at once");
}
