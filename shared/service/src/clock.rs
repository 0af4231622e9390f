//! Monitors the clock offset of this machine.

use std::time::Duration;

use bus::Bus;
use telemetry::metrics::{Gauge, set};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Interval between two measurements of the farm's time.
const EVERY: Duration = Duration::from_secs(10);

/// Exports the offset as a metric, and logs when it becomes notable and when it is small again, until `stop`.
pub(crate) async fn watch_skew(bus: Bus, stop: CancellationToken) {
    let mut was_notable = false;
    loop {
        if let Some(skew) = bus.clock().skew() {
            set(Gauge::ClockSkewMilliseconds, &[], skew.0);
            let is_notable = skew.is_notable();
            if is_notable && !was_notable {
                warn!(%skew, "the clock of this machine is wrong; the farm uses the clock of nats-server");
            } else if was_notable && !is_notable {
                info!("the clock of this machine is right again");
            }
            was_notable = is_notable;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}
