//! How much room an executor may report, and how many executions it may hold.

use model::{Resources, Room};

/// Maximum number of executions that an executor claims ahead, for each slot: with few slots, it gets several at a time.
pub const AHEAD_PER_SLOT: u16 = 4;

/// Maximum number of executions that an executor holds, for each slot. Running ones and those claimed ahead are 5; the others
/// have ended, and their ends are not yet applied to the index.
const CLAIMS_PER_SLOT: u32 = 16;

/// Maximum number of executions that an executor with `slots` may hold.
pub fn claims_max(slots: u16) -> u32 {
    CLAIMS_PER_SLOT * u32::from(slots.max(1))
}

/// The part of a reported room that an executor with this capacity and `slots` can have.
pub fn credible_room(reported: &Room, capacity: &Resources, slots: u16) -> Room {
    let mut free = reported.free.clamped(capacity);
    for (name, amount) in &mut free.custom {
        *amount = (*amount).min(capacity.custom(name));
    }
    Room {
        free,
        starts: reported.starts.min(slots),
        ahead: reported.ahead.min(slots.saturating_mul(AHEAD_PER_SLOT)),
        ..reported.clone()
    }
}

#[cfg(test)]
mod tests {
    use model::Amount;

    use super::*;

    #[test]
    fn no_executor_has_more_room_than_it_is_large() {
        let with_gpus = |mut resources: Resources, count| {
            resources.custom.insert("gpu".parse().unwrap(), Amount::whole(count));
            resources
        };
        let capacity = with_gpus(Resources::new(2000, 4 << 30), 1);
        let honest = Room { number: 3, free: capacity.clone(), starts: 2, ahead: 8, ..Room::default() };
        assert_eq!(credible_room(&honest, &capacity, 2), honest);
        let free = with_gpus(Resources::new(u64::MAX, u64::MAX), 9);
        let lie = Room { number: 3, free, starts: u16::MAX, ahead: u16::MAX, ..Room::default() };
        assert_eq!(credible_room(&lie, &capacity, 2), honest);
        assert_eq!((claims_max(0), claims_max(4)), (16, 64));
    }
}
