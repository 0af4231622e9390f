//! Checks that the gateways are reachable.

use std::time::Duration;

use bus::Bus;
use command_line::failure::TRUST;
use model::{DigestFunction, GatewayAddress, is_loopback_listen};
use remote::{Remote, RemoteError};
use service::host_name;
use telemetry::error_chain;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::Finding;

/// Time limit of the calls of one check.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const START: &str = "start one: forebay serve gateway";
pub(super) const SEE_LOG: &str =
    "check that the gateway runs and its address is reachable from here; see its log";

/// Calls each gateway that answers on the bus.
pub(super) async fn run(bus: &Bus) -> Vec<Finding> {
    let found = match bus.gateways().all(&host_name()).await {
        Ok(found) => found,
        Err(error) => {
            return vec![Finding::fail("gateway", error_chain(&error), "see the log of nats-server")];
        }
    };
    if found.is_empty() {
        let none = "none is reachable from this machine";
        let found = format!("{none}; jobs and actions wait, `submit --dir` and `get --output` do not work");
        return vec![Finding::warn("gateway", found, START)];
    }
    let checks = found.iter().map(gateway);
    futures::future::join_all(checks).await
}

async fn gateway(address: &GatewayAddress) -> Finding {
    let GatewayAddress { grpc, http } = address;
    let called = async {
        let remote = Remote::connect(grpc, "", DigestFunction::Sha256).await;
        let failed = |error: RemoteError| (format!("{grpc}: {}", error_chain(&error)), advice(&error));
        remote.map_err(failed)?.capabilities().await.map_err(failed)?;
        healthy(http).await.map_err(|error| (format!("{http}/healthz: {error}"), SEE_LOG))
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, called).await {
        Ok(Ok(())) if http.strip_prefix("http://").is_some_and(|listen| !is_loopback_listen(listen)) => {
            let found =
                format!("answers at {grpc} and {http} without TLS: others can read and change what is sent");
            Finding::warn(
                "gateway",
                found,
                "set tls_certificate_file and tls_key_file: docs/gateway-access.md",
            )
        }
        Ok(Ok(())) => Finding::ok("gateway", format!("answers at {grpc} and {http}")),
        Ok(Err((error, advice))) => Finding::unreachable("gateway", error, advice),
        Err(_) => {
            let found = format!("{grpc} or {http} does not answer within {} s", ANSWER_TIMEOUT.as_secs());
            Finding::unreachable("gateway", found, SEE_LOG)
        }
    }
}

fn advice(error: &RemoteError) -> &'static str {
    if error.is_untrusted() {
        TRUST
    } else if error.lacks_credentials() {
        "set gateway_token_file (or FOREBAY_GATEWAY_TOKEN_FILE) to a file with an API key or token"
    } else {
        SEE_LOG
    }
}

/// Checks the health endpoint of the HTTP API.
async fn healthy(http: &str) -> std::io::Result<()> {
    if let Some(address) = http.strip_prefix("https://") {
        // The call over gRPC has checked its certificate, which is the same.
        return TcpStream::connect(address).await.map(drop);
    }
    let address = http.strip_prefix("http://").unwrap_or(http);
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let text = String::from_utf8_lossy(&answer);
    let first = text.lines().next().unwrap_or_default();
    if first.contains(" 200 ") {
        return Ok(());
    }
    Err(std::io::Error::other(format!("unexpected answer {first:?}")))
}
