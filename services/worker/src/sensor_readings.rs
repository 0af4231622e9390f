//! Reads the sensors while builds run, and adjusts the congestion window.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use policy::MemoryAhead;
use sensors::{Readings, SensorInput, Sensors, memory_states};
use service::ServiceError;
use telemetry::metrics::{Gauge, Label, set};
use tracing::info;

use crate::{admission::MemoryRoom, shared::Shared};

/// Mount point of the kernel's process information.
const PROC: &str = "/proc";

/// Reads the sensors until the worker ends: at each tick while builds run or a resource is short, else at each heartbeat.
pub(crate) async fn serve(shared: Arc<Shared>, root: PathBuf) -> Result<(), ServiceError> {
    let settings = &shared.settings;
    let sensors = Sensors::new(&settings.sensors, Path::new(PROC), &root, settings.workspaces);
    let mut sensors = sensors.with_lock(&shared.machine);
    let mut begun = shared.workspaces.begun();
    let mut closed = false;
    loop {
        let readings = sensors.read(SensorInput::default());
        // What a build uses now may be more than what was measured, and then less of it is still to come.
        if readings.is_some_and(|readings| apply(&shared, readings)) {
            shared.usage.ask_for_memory().await;
        }
        let why = shared.workspaces.sensors_closed();
        if why.is_some() != closed {
            closed = why.is_some();
            if let Some(why) = why {
                info!(why, "not accepting builds for now");
            } else {
                info!("the sensors allow builds again");
            }
        }
        if shared.workspaces.is_idle() && !shared.workspaces.is_short() {
            tokio::select! {
                _ = begun.changed() => {}
                () = tokio::time::sleep(settings.heartbeat) => {}
            }
        } else {
            tokio::time::sleep(settings.sensors.tick).await;
        }
    }
}

/// Returns whether another build does not fit into the memory.
fn apply(shared: &Shared, mut readings: Readings) -> bool {
    for (name, is_red) in &readings.by_name {
        set(Gauge::BuildSensorRed, &[(Label::Sensor, name)], i64::from(*is_red));
    }
    let memory = memory_room(shared, &mut readings);
    set(Gauge::BuildSensorRed, &[(Label::Sensor, "memory_ahead")], i64::from(is_full(memory)));
    let window = shared.workspaces.apply_readings(readings, memory);
    set(Gauge::BuildWindowPoints, &[], i64::from(window.size));
    set(Gauge::BuildWindowUsedPoints, &[], i64::from(window.used));
    is_full(memory)
}

fn is_full(memory: Option<MemoryRoom>) -> bool {
    memory.is_some_and(|memory| memory.room == 0)
}

/// How many more builds fit into the memory once all running ones have grown as earlier ones did.
fn memory_room(shared: &Shared, readings: &mut Readings) -> Option<MemoryRoom> {
    let settings = &shared.settings.sensors;
    if !settings.congestion_window || settings.memory_left_percent == 0 {
        return None;
    }
    let (uses, each) = shared.usage.memory();
    if each == 0 {
        return None;
    }
    let running = u32::try_from(uses.len()).unwrap_or(u32::MAX);
    let ahead = memory_states(Path::new(PROC)).into_iter().map(|state| {
        let reserve = state.all / 100 * u64::from(settings.memory_left_percent);
        (MemoryAhead::new(state.left, reserve, uses.iter().copied()), state)
    });
    let (ahead, state) = ahead.min_by_key(|(ahead, _)| ahead.left)?;
    let memory = MemoryRoom { running, room: ahead.room(each) };
    if memory.room == 0 && running > 0 {
        readings.red.push(format!(
            "the {running} builds that run are expected to need {} MB more and another one {} MB: {} MB of the memory of \
             {} are free",
            ahead.growth >> 20,
            each >> 20,
            state.left >> 20,
            state.owner,
        ));
    }
    Some(memory)
}
