use axum::{extract::FromRequestParts as _, http::Request};

use build_events::EventName;
use bus::EventKind;
use model::OutputStream;

use futures::StreamExt as _;
use tokio::sync::mpsc;

use super::{
    HeaderMap, Next, QueryParameters, Sequence, WATCH_ENDPOINT, WatchFilter, WatchKind, events, filter,
    position,
};

async fn asked(uri: &str, last: Option<&str>) -> (QueryParameters, HeaderMap) {
    let mut request = Request::builder().uri(uri);
    if let Some(last) = last {
        request = request.header("Last-Event-ID", last);
    }
    let (mut parts, ()) = request.body(()).unwrap().into_parts();
    (QueryParameters::from_request_parts(&mut parts, &()).await.unwrap(), parts.headers)
}

#[tokio::test]
async fn where_a_stream_starts() {
    for (uri, last, wanted) in [
        ("/x", None, Some(0)),
        ("/x?from=7", None, Some(7)),
        ("/x?from=7", Some("9"), Some(9)),
        ("/x?from=7", Some(""), Some(7)),
        ("/x?from=-1", None, None),
        ("/x", Some("nine"), None),
    ] {
        let (query, headers) = asked(uri, last).await;
        assert_eq!(position(&query, &headers).ok(), wanted.map(Sequence), "{uri} {last:?}");
    }
}

#[tokio::test]
async fn what_a_stream_has() {
    let (query, _) =
        asked("/x?kind=console&kind=tool&kind=queue&task=a&stream=stderr&event=testResult", None).await;
    let wanted = WatchFilter {
        kinds: vec![EventKind::Console.into(), EventKind::Tool.into(), WatchKind::Queue],
        stream: Some(OutputStream::Stderr),
        tasks: vec!["a".parse().unwrap()],
        build_events: vec![EventName::TestResult],
    };
    assert_eq!(filter(&query).unwrap(), wanted);
    for wrong in ["/x?kind=stderr", "/x?stream=both", "/x?task=a%20b", "/x?event=test"] {
        assert!(filter(&asked(wrong, None).await.0).is_err(), "{wrong}");
    }
    assert_eq!(filter(&asked("/x", None).await.0).unwrap(), WatchFilter::default());
}

/// Number of event streams that ended with this status.
fn watched(status: &str) -> u64 {
    let series = format!("forebay_api_requests_total{{endpoint=\"{WATCH_ENDPOINT}\",status=\"{status}\"}} ");
    let text = telemetry::metrics::render();
    text.lines().find_map(|line| line.strip_prefix(&series)).map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn a_stream_counts_by_how_it_ended() {
    let (sender, receiver) = mpsc::channel(1);
    drop(events(receiver));
    assert!(sender.is_closed());
    for next in [Next::BrokeOff, Next::Ended] {
        let (sender, receiver) = mpsc::channel(1);
        sender.send(next).await.unwrap();
        drop(sender);
        events(receiver).count().await;
    }
    assert_eq!([watched("left"), watched("unavailable"), watched("ok")], [1, 1, 1]);
}
