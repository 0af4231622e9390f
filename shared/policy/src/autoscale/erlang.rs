//! How many places a stream of items needs that arrive by chance (Erlang's second formula).

/// Of those that arrive, how many may wait longer than the target.
const LATE: f64 = 0.05;

/// The smallest number of places, up to `most`, so that 95 % of the items start within `target_seconds`, when so many are
/// served at a time on the average (`load`, in Erlang) and each takes `service_seconds`. Both are taken to come by chance,
/// with nothing known of the next: what is more regular waits less.
pub(super) fn places(load: f64, service_seconds: f64, target_seconds: f64, most: u64) -> u64 {
    if load <= 0.0 || service_seconds <= 0.0 {
        return 0;
    }
    // The first formula, place by place: how many would be turned away if none could wait.
    let mut blocked = 1.0;
    for places in 1..=most {
        let spare = places as f64 - load;
        blocked = load * blocked / (places as f64 + load * blocked);
        if spare <= 0.0 {
            continue;
        }
        let waits = blocked / (1.0 - (load / places as f64) * (1.0 - blocked));
        if waits * (-spare * target_seconds / service_seconds).exp() <= LATE {
            return places;
        }
    }
    most
}
