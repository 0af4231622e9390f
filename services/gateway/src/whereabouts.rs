//! Reports the addresses of this gateway to other processes.

use std::net::SocketAddr;

use bus::{Bus, Subject};
use model::GatewayAddress;
use service::host_name;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use http_api::url;

/// Answers address requests until the gateway stops.
pub(crate) async fn answer(bus: Bus, http: SocketAddr, grpc: SocketAddr, stop: CancellationToken) {
    let own = host_name();
    let answers = bus.gateways().serve_address(|asker| {
        let http = reachable(http, asker, &own)?;
        Some(GatewayAddress { http, grpc: reachable(grpc, asker, &own)?.replacen("http://", "grpc://", 1) })
    });
    tokio::select! {
        answered = answers => {
            if let Err(error) = answered {
                let error = telemetry::error_chain(&error);
                warn!(error, "cannot answer requests for the address of this gateway");
            }
        }
        () = stop.cancelled() => bus.say_changed(&Subject::GatewayChanged).await,
    }
}

/// The URL at which host `asker` reaches `bound` on host `own`, or `None` if it cannot.
fn reachable(bound: SocketAddr, asker: &str, own: &str) -> Option<String> {
    let is_here = asker.is_empty() || asker == own;
    match bound.ip() {
        ip if ip.is_unspecified() && !is_here => Some(format!("http://{own}:{}", bound.port())),
        ip if ip.is_loopback() && !is_here => None,
        _ => Some(url(bound)),
    }
}

#[cfg(test)]
mod tests {
    use super::reachable;

    #[test]
    fn an_address_is_one_that_the_asker_can_use() {
        let at = |bound: &str, asker: &str| reachable(bound.parse().unwrap(), asker, "a");
        assert_eq!(at("127.0.0.1:80", "a").unwrap(), "http://127.0.0.1:80");
        assert_eq!(at("127.0.0.1:80", "b"), None);
        assert_eq!(at("0.0.0.0:80", "a").unwrap(), "http://127.0.0.1:80");
        assert_eq!(at("0.0.0.0:80", "b").unwrap(), "http://a:80");
        assert_eq!(at("10.1.2.3:80", "b").unwrap(), "http://10.1.2.3:80");
    }
}
