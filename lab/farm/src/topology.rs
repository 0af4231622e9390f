//! The streams of a test's servers.

use std::time::{Duration, Instant};

use bus::Bus;
use jetstream::Topology;
use settings::TopologySettings;

/// Creates all streams and consumers.
pub(crate) async fn ensure_topology(bus: &Bus, settings: &TopologySettings) {
    let topology = Topology::new(settings);
    let deadline = Instant::now() + Duration::from_secs(30);
    // A cluster answers before it has a leader.
    while let Err(error) = jetstream::ensure(bus, &topology).await {
        assert!(Instant::now() < deadline, "the topology cannot be applied: {error:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
