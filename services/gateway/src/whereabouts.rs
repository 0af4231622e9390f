//! Reports the addresses of this gateway to other processes.

use bus::{Bus, Subject};
use model::GatewayAddress;
use service::{Bound, host_name};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Answers address requests until the gateway stops.
pub(crate) async fn answer(bus: Bus, [http, grpc]: [Bound; 2], stop: CancellationToken) {
    let own = host_name();
    let answers = bus.gateways().serve_address(|asker| {
        Some(GatewayAddress { http: http.url_for(asker, &own)?, grpc: grpc.url_for(asker, &own)? })
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
