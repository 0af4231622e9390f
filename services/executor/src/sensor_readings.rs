//! Reads the sensors while the executor has actions, and adjusts the congestion window.

use std::sync::Arc;

use sensors::{Readings, SensorInput};
use service::ServiceError;
use telemetry::metrics::{Gauge, Label, set};
use tracing::info;

use crate::{hand_over, run, shared::Shared};

/// Reads the sensors until the session ends, while the executor has actions or a resource is short. An idle executor
/// reads them when it reports its room and when it gets an action.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    loop {
        shared.actions.until_readings_needed().await;
        read(&shared);
        let stuck = shared.actions.remove_stuck();
        if !stuck.is_empty() {
            hand_over::give_back(&shared, stuck).await;
            // A heartbeat shows the schedulers that this executor is alive.
            shared.actions.announce.notify_one();
        }
        tokio::time::sleep(shared.admission.every).await;
    }
}

/// Reads the sensors, unless they were read recently.
pub(crate) fn read(shared: &Arc<Shared>) {
    let admission = &shared.admission;
    let mut sensors = admission.sensors.lock();
    let input = SensorInput { starting: shared.actions.starting() };
    let Some(Readings { signals, red, stop, by_name }) = sensors.read(input) else { return };
    for (name, is_red) in by_name {
        set(Gauge::ActionSensorRed, &[(Label::Sensor, name)], i64::from(is_red));
    }
    let (begin, is_open) = shared.actions.apply_readings(&signals, red, stop);
    drop(sensors);
    for work in begin {
        run::begin(shared, work);
    }
    let window = shared.actions.load().window;
    set(Gauge::ActionWindowPoints, &[], i64::from(window.size));
    set(Gauge::ActionWindowUsedPoints, &[], i64::from(window.used));
    if !admission.set_open(is_open) {
        return;
    }
    // The heartbeat says whether this executor accepts actions.
    shared.actions.announce.notify_one();
    if is_open {
        info!(window = window.size, "accepting actions again");
    } else {
        info!(window = window.size, used = window.used, red = ?window.red, "not accepting actions for now");
    }
}
