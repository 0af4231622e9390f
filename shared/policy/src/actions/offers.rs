//! What the farm can run: what live executors offer, and what may still be started.

use std::collections::{BTreeMap, BTreeSet};

use model::{ExecutorHeartbeat, ExecutorStatus, Pool, PoolName};

/// What executors offer, as pools.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offers {
    /// What live executors offer, and those that the autoscaler may start. Each pool once for each set of properties.
    pub present: Vec<Pool>,
    /// What executors offered that left the farm, as far as no present one offers the same.
    pub departed: Vec<Pool>,
}

impl Offers {
    /// The offers of a farm with these `live` executors, in which all pools in `registered` had an executor once.
    /// `scaled` are the pools for which the autoscaler may start executors.
    pub fn of<'a>(
        live: impl IntoIterator<Item = &'a ExecutorHeartbeat>,
        registered: &[Pool],
        scaled: &BTreeSet<PoolName>,
    ) -> Self {
        let mut present: BTreeMap<PoolName, Vec<Pool>> = BTreeMap::new();
        // A draining executor accepts nothing, but may be resumed.
        for heartbeat in live.into_iter().filter(|heartbeat| heartbeat.status != ExecutorStatus::Gone) {
            let offer = heartbeat.offer();
            let of_pool = present.entry(offer.name.clone()).or_default();
            match of_pool.iter_mut().find(|known| is_alike(known, &offer)) {
                Some(known) => known.capacity = known.capacity.max(&offer.capacity),
                None => of_pool.push(offer),
            }
        }
        let mut departed = Vec::new();
        for pool in registered {
            let of_pool = present.get(&pool.name).map(Vec::as_slice).unwrap_or_default();
            let is_present =
                of_pool.iter().any(|known| is_alike(known, pool) && pool.capacity.fits(&known.capacity));
            if is_present {
                continue;
            }
            if scaled.contains(&pool.name) {
                present.entry(pool.name.clone()).or_default().push(pool.clone());
            } else {
                departed.push(pool.clone());
            }
        }
        Self { present: present.into_values().flatten().collect(), departed }
    }

    /// Offers of the present and of executors that left.
    pub fn all(&self) -> impl Iterator<Item = &Pool> {
        self.present.iter().chain(&self.departed)
    }
}

/// Whether two pools offer the same properties.
fn is_alike(one: &Pool, other: &Pool) -> bool {
    one.properties == other.properties && one.root_is_input == other.root_is_input
}

#[cfg(test)]
mod tests {
    use model::{ExecutorType, Millis, Resources, Room, WindowState};

    use super::*;

    fn pool(name: &str, gpu: &str, cpus: u64) -> Pool {
        Pool {
            name: name.parse().unwrap(),
            properties: [("gpu".to_owned(), vec![gpu.to_owned()])].into(),
            root_is_input: false,
            capacity: Resources::new(cpus * 1000, 1),
            executor_type: ExecutorType::x86(),
        }
    }

    fn live(pool: &Pool, status: ExecutorStatus) -> ExecutorHeartbeat {
        ExecutorHeartbeat {
            executor: "x".parse().unwrap(),
            pool: pool.name.clone(),
            host: String::new(),
            home: "x".parse().unwrap(),
            pid: 1,
            started_at_ms: Millis(0),
            status,
            executor_type: ExecutorType::x86(),
            slots: 1,
            properties: pool.properties.clone(),
            root_is_input: false,
            capacity: pool.capacity.clone(),
            held: Resources::default(),
            running: Vec::new(),
            room: Room::default(),
            window: WindowState::default(),
            images: Vec::new(),
            image_names: Vec::new(),
            shared_services: Vec::new(),
            ttl_ms: 1,
            clock_skew_ms: None,
        }
    }

    #[test]
    fn what_live_executors_offer_is_present_with_the_largest_capacity() {
        let (small, large) = (pool("a", "x", 2), pool("a", "x", 8));
        let heartbeats = [live(&small, ExecutorStatus::Ready), live(&large, ExecutorStatus::Draining)];
        let offers = Offers::of(&heartbeats, std::slice::from_ref(&large), &BTreeSet::new());
        assert_eq!(offers, Offers { present: vec![large], departed: Vec::new() });
    }

    #[test]
    fn a_departed_pool_is_present_only_if_it_is_scaled() {
        let (here, gone, larger) = (pool("here", "x", 2), pool("gone", "y", 2), pool("here", "x", 4));
        let heartbeats = [live(&here, ExecutorStatus::Ready), live(&gone, ExecutorStatus::Gone)];
        let registered = [gone.clone(), larger.clone()];
        let offers = Offers::of(&heartbeats, &registered, &BTreeSet::new());
        assert_eq!(offers.present, std::slice::from_ref(&here));
        assert_eq!(offers.departed, registered, "a larger executor left too");
        let offers = Offers::of(&heartbeats, &registered, &BTreeSet::from([gone.name.clone()]));
        assert_eq!(offers.present, [gone, here]);
        assert_eq!(offers.departed, [larger]);
    }
}
