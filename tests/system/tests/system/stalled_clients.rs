//! Clients that start a request and do not continue.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use farm::{Farm, Listening, Output, ServiceProcess};
use model::{BuildKey, Priority};
use reapi::execution::{GetCapabilitiesRequest, capabilities_client::CapabilitiesClient};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::http;

/// On a machine under load, an operation of at most one second takes less than this.
const LATE: Duration = Duration::from_secs(40);

const HALF_HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n";
const HALF_BODY: &[u8] =
    b"POST /v1/builds/default HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999\r\n\r\n{";
const HALF_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

async fn farm() -> Farm {
    Farm::builder().only(&["enqueuer"]).start().await
}

fn address(url: Option<&String>) -> SocketAddr {
    url.unwrap().rsplit_once("//").unwrap().1.parse().unwrap()
}

async fn say(to: SocketAddr, what: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    // The connection may already be closed in favour of another one.
    let _ = stream.write_all(what).await;
    stream
}

/// Reads the answer until the server closes the connection.
async fn until_closed(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(LATE, stream.read_to_end(&mut answer)).await;
    let _ = read.expect("the server closes the connection");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Checks that both APIs answer.
async fn answers(at: &Listening) {
    ask(at).await.unwrap();
}

async fn ask(at: &Listening) -> Result<(), Box<dyn std::error::Error>> {
    let groups = format!("{}/v1/groups", at.http.as_ref().unwrap());
    http::client().get(groups).timeout(LATE).send().await?.error_for_status()?;
    let grpc = at.grpc.as_ref().unwrap().replacen("grpc://", "http://", 1);
    let channel = tonic::transport::Endpoint::from_shared(grpc)?.timeout(LATE);
    let mut client = CapabilitiesClient::new(channel.connect().await?);
    client.get_capabilities(GetCapabilitiesRequest { instance_name: "main".into() }).await?;
    Ok(())
}

#[tokio::test]
async fn half_open_connections_starve_nobody_where_few_files_may_be_open() {
    let farm = farm().await;
    let gateway = farm.spawn_limited("gateway", 64, &[]).await;
    let at = gateway.listening().unwrap();
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(say(address(at.http.as_ref()), HALF_HEAD).await);
        held.push(say(address(at.grpc.as_ref()), HALF_PREFACE).await);
        held.push(say(address(at.http.as_ref()), HALF_BODY).await);
    }
    let began = Instant::now();
    // Clients that sent a part of a body keep their connections for a moment, and some wait to be accepted.
    while let Err(error) = ask(&at).await {
        assert!(began.elapsed() < Duration::from_secs(25), "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Well before any of them would time out.
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    let open = std::fs::read_dir(format!("/proc/{}/fd", gateway.pid())).unwrap().count();
    assert!(open < 64, "{open}");
}

#[tokio::test]
async fn four_hundred_half_open_connections_are_closed_and_cost_nothing() {
    let farm = farm().await;
    let short =
        [("FOREBAY_REQUEST_HEAD_TIMEOUT_SECONDS", "2"), ("FOREBAY_REQUEST_BODY_TIMEOUT_SECONDS", "2")];
    let gateway = farm.spawn_with_env("gateway", &short).await;
    let at = gateway.listening().unwrap();
    let (to_http, to_grpc) = (address(at.http.as_ref()), address(at.grpc.as_ref()));
    let mut held = Vec::new();
    for _ in 0..400 {
        held.push(say(to_http, HALF_HEAD).await);
    }
    let others = [say(to_http, b"").await, say(to_grpc, b"").await, say(to_grpc, HALF_PREFACE).await];
    let body = say(to_http, HALF_BODY).await;
    answers(&at).await;
    for stream in held {
        assert_eq!(until_closed(stream).await, "");
    }
    for stream in others {
        until_closed(stream).await;
    }
    let refusal = until_closed(body).await;
    assert!(
        refusal.starts_with("HTTP/1.1 408 ") && refusal.contains("the request body ended early"),
        "{refusal}"
    );
    answers(&at).await;
}

#[tokio::test]
async fn idle_grpc_connections_that_answer_live_on() {
    let farm = farm().await;
    let gateway = farm.spawn_with_env("gateway", &[("FOREBAY_REQUEST_HEAD_TIMEOUT_SECONDS", "1")]).await;
    let grpc = gateway.listening().unwrap().grpc.unwrap().replacen("grpc://", "http://", 1);
    let channel = tonic::transport::Endpoint::from_shared(grpc).unwrap().connect().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    // A channel would reconnect: its connections are counted from outside.
    let metrics = http::client().get(gateway.listening().unwrap().metrics.unwrap()).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    assert!(metrics.contains("\nforebay_connections 2\n"), "this one and that of the metrics: {metrics}");
    drop(channel);
}

#[tokio::test]
async fn a_gateway_that_may_open_too_few_files_for_its_settings_does_not_start() {
    let farm = farm().await;
    let mut command = tokio::process::Command::new("sh");
    let serve = farm.command(&["serve", "gateway", "--no-wait"]);
    let binary = serve.as_std().get_program().to_owned();
    command.args(["-c", "ulimit -n 64 && exec \"$0\" serve gateway --no-wait"]).arg(binary);
    command.envs(serve.as_std().get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("FOREBAY_CONNECTIONS_MAX", "5000");
    let output = Output::of(command).await;
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert!(output.stderr.contains("5000 connections need 5040 file descriptors"), "{}", output.stderr);
}

fn resident_bytes(process: &ServiceProcess) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

async fn watch(to: SocketAddr, key: &BuildKey, after: u64) -> TcpStream {
    let path = format!("/v1/builds/{}/{}/events?from={after}", key.group, key.id);
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    // The kernel buffers as little as possible, so that the gateway has to wait.
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(to).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    stream
}

/// Reads events until the last one, or until the server closes the stream; returns the position of
/// the last whole event.
async fn read_events(stream: &mut TcpStream, all: &mut String) -> (u64, bool) {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 256 << 10]);
    let mut finished = false;
    while !finished {
        let Ok(length @ 1..) = stream.read(&mut buffer).await else { break };
        bytes.extend_from_slice(&buffer[..length]);
        let tail = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(8192)..]).into_owned();
        finished = tail.contains("INVOCATION_FINISHED") || tail.contains("\"FINISHED\"");
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
    let last = whole.lines().rev().find_map(|line| line.strip_prefix("id: ")?.trim().parse().ok());
    all.push_str(if finished { &text } else { whole });
    (last.unwrap_or(0), finished)
}

#[tokio::test]
async fn watchers_that_do_not_read_cost_next_to_nothing_and_can_come_back() {
    const WATCHERS: usize = 60;
    let farm = Farm::builder().without("gateway").env("FOREBAY_CONSOLE_BYTES_MAX", "50000000").start().await;
    let gateway = farm.spawn("gateway").await;
    let at = gateway.listening().unwrap();
    let to = address(at.http.as_ref());
    let go = farm.folder().join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done; seq 3000000", go.display());
    let key = farm.create("default", Priority::Interactive, &["sh", "-c", &script]).await;
    answers(&at).await;
    let before = resident_bytes(&gateway);
    let mut held = Vec::new();
    for _ in 0..WATCHERS {
        held.push(watch(to, &key, 0).await);
    }
    std::fs::write(go, "").unwrap();
    farm.wait_finished(&key, LATE).await;
    let grown = resident_bytes(&gateway).saturating_sub(before);
    // All of them together would have heard 1.4 GB. 167 MB were seen on a busy machine.
    assert!(grown < 300 << 20, "{grown} bytes more");
    // Some of what it was sent before may be cut: it goes on behind the last whole event.
    let mut all = String::new();
    let (mut reader, began) = (held.pop().unwrap(), Instant::now());
    loop {
        let (last, finished) = read_events(&mut reader, &mut all).await;
        if finished {
            break;
        }
        assert!(began.elapsed() < LATE, "the end did not come");
        reader = watch(to, &key, last).await;
    }
    let data = all.lines().filter_map(|line| line.strip_prefix("data: "));
    let values = data.filter_map(|data| serde_json::from_str::<serde_json::Value>(data).ok());
    let text: String = values.filter_map(|value| value["text"].as_str().map(str::to_owned)).collect();
    let numbers = text.lines().map(|line| line.parse::<u32>().unwrap());
    assert!(numbers.eq(1..=3_000_000), "every event once, in order, for a late reader");
}
