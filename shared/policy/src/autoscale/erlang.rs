//! Number of servers needed for a stream of random arrivals (Erlang C formula).

/// Fraction of arriving items that may wait longer than the target.
const LATE: f64 = 0.05;

/// The smallest number of servers, up to `most`, with which 95 % of the items start within `target_seconds`. `load` is
/// the average number of items in service (in Erlang), and each item takes `service_seconds`. Arrivals and service
/// times are assumed to be random and memoryless; more regular ones wait less.
pub(super) fn places(load: f64, service_seconds: f64, target_seconds: f64, most: u64) -> u64 {
    if load <= 0.0 || service_seconds <= 0.0 {
        return 0;
    }
    // The Erlang B formula, computed server by server: the fraction of items rejected if none could wait.
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
