//! Free room of an executor, and the next action that may start: only sums and comparisons.

use model::{KeptRoom, Resources, WindowState};
use policy::{Signal, Window, points};

/// The room that an action needs while it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand<'a> {
    /// Resources that it holds.
    pub(crate) size: &'a Resources,
    /// Whether it must run alone on the executor.
    pub(crate) exclusive: bool,
    /// Whether it may use the room that is kept for emergencies.
    pub(crate) emergency: bool,
}

/// The room for more actions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FreeRoom {
    /// Resources that no held action uses or waits for.
    pub(crate) resources: Resources,
    /// Maximum number of actions that can start in it.
    pub(crate) starts: u16,
    /// Part of both that is kept for emergencies.
    pub(crate) kept: KeptRoom,
}

impl FreeRoom {
    /// Number of actions other than emergencies that can start in it.
    pub(crate) fn starts_of_others(&self) -> u16 {
        self.starts.saturating_sub(self.kept.starts)
    }

    /// The room if at most `most` actions may start in it, regardless of their band.
    #[must_use]
    pub(crate) fn limited(self, most: u16) -> Self {
        let others = self.starts_of_others().min(most);
        let starts = self.starts.min(most);
        Self { starts, kept: KeptRoom { starts: starts - others, ..self.kept }, ..self }
    }
}

/// The free and used room of an executor.
#[derive(Debug)]
pub(crate) struct Allocation {
    capacity: Resources,
    slots: u16,
    /// Slots and resources that only emergencies use, unless nothing else runs.
    kept: KeptRoom,
    held: Resources,
    started: u16,
    /// Whether the running action has the executor for itself.
    exclusive: bool,
    window: Option<Window>,
    /// Maximum number of points in use since the sensors were last read.
    peak: u32,
    /// Descriptions of the short resources; whether the machine is congested; whether nothing may start.
    red: Vec<String>,
    congested: bool,
    shut: bool,
}

impl Allocation {
    /// Creates the room with everything free. `emergency_slots` of the `slots`, with their part of the processors and
    /// the memory, are kept for emergencies.
    pub(crate) fn new(capacity: Resources, slots: u16, emergency_slots: u16, window: Option<Window>) -> Self {
        let part = |all: u64| all / u64::from(slots.max(1)) * u64::from(emergency_slots);
        let resources = Resources::new(part(capacity.cpu_millis), part(capacity.memory_bytes));
        Self {
            capacity,
            slots,
            kept: KeptRoom { starts: emergency_slots, resources },
            held: Resources::default(),
            started: 0,
            exclusive: false,
            window,
            peak: 0,
            red: Vec::new(),
            congested: false,
            shut: false,
        }
    }

    /// Total resources of the executor.
    pub(crate) fn capacity(&self) -> &Resources {
        &self.capacity
    }

    /// Maximum number of simultaneous actions.
    pub(crate) fn slots(&self) -> u16 {
        self.slots
    }

    /// Resources held by running actions.
    pub(crate) fn held(&self) -> &Resources {
        &self.held
    }

    /// Number of running actions.
    pub(crate) fn started(&self) -> u16 {
        self.started
    }

    /// Reserves room for an action that starts.
    pub(crate) fn begin(&mut self, size: &Resources, exclusive: bool) {
        self.held.add(size);
        self.started = self.started.saturating_add(1);
        self.exclusive = exclusive;
        self.peak = self.peak.max(self.used());
    }

    /// Frees the room of an action that has left its slot.
    pub(crate) fn end(&mut self, size: &Resources) {
        self.held.take(size);
        self.started = self.started.saturating_sub(1);
        self.exclusive = false;
    }

    /// Number of points in use.
    fn used(&self) -> u32 {
        points(self.started, &self.held, &self.capacity, self.slots)
    }

    fn left(&self) -> Resources {
        let mut left = self.capacity.clone();
        left.take(&self.held);
        left
    }

    /// The index of the waiting action that starts next; the first one always if nothing runs. An action
    /// that does not fit is not overtaken, unless it waits for a custom resource: others that do not need
    /// that resource overtake it. Emergencies are the first of those that wait.
    pub(crate) fn next<'a>(&self, waiting: impl IntoIterator<Item = Demand<'a>>) -> Option<usize> {
        if self.shut || self.exclusive || self.started >= self.slots {
            return None;
        }
        let alone = self.started == 0;
        let mut left = self.left();
        for (index, demand) in waiting.into_iter().enumerate() {
            if demand.exclusive {
                return (alone && demand.size.fits_custom(&left)).then_some(index);
            }
            if !demand.size.fits_custom(&left) {
                left.take(&Resources { custom: demand.size.custom.clone(), ..Resources::default() });
                continue;
            }
            if !demand.emergency && !alone {
                left.take(&self.kept.resources);
            }
            let has_slot =
                demand.emergency || alone || self.started.saturating_add(self.kept.starts) < self.slots;
            let fits = alone || demand.size.fits(&left);
            return (has_slot && fits && self.admits(demand.size)).then_some(index);
        }
        None
    }

    fn admits(&self, size: &Resources) -> bool {
        let Some(window) = &self.window else { return true };
        let mut held = self.held.clone();
        held.add(size);
        let after = points(self.started.saturating_add(1), &held, &self.capacity, self.slots);
        window.admits(after, self.started == 0)
    }

    /// The room not needed by waiting actions. `None` while an exclusive action runs or waits, and
    /// while nothing may start.
    pub(crate) fn free<'a>(&self, waiting: impl IntoIterator<Item = Demand<'a>>) -> Option<FreeRoom> {
        if self.shut || self.exclusive {
            return None;
        }
        let (mut held, mut taken) = (self.held.clone(), self.started);
        for demand in waiting {
            if demand.exclusive {
                return None;
            }
            held.add(demand.size);
            taken = taken.saturating_add(1);
        }
        let mut resources = self.capacity.clone();
        resources.take(&held);
        let is_full = resources.cpu_millis == 0 || resources.memory_bytes == 0;
        let slots = if is_full { 0 } else { self.slots.saturating_sub(taken) };
        let points = points(taken, &held, &self.capacity, self.slots);
        let admitted = self.window.as_ref().map_or(u32::MAX, |window| window.room(points));
        // The window bounds all actions; what is kept is a part of the slots.
        let others = slots.saturating_sub(self.kept.starts);
        let kept = KeptRoom { starts: slots - others, resources: self.kept.resources.clone() };
        let room = FreeRoom { resources, starts: slots, kept };
        Some(room.limited(u16::try_from(admitted).unwrap_or(u16::MAX)))
    }

    /// Whether the machine is short of a resource: then nothing is claimed ahead.
    pub(crate) fn is_short(&self) -> bool {
        self.congested || self.shut
    }

    /// Whether nothing may start.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut
    }

    /// Whether the window admits nothing, for a reason other than that all slots are busy.
    pub(crate) fn is_closed(&self) -> bool {
        let full = |window: &Window| !window.is_open() && window.room(self.used()) == 0;
        self.shut || self.window.as_ref().is_some_and(full)
    }

    /// Applies a reading of the sensors: `signals` are the congestion signals, `red` describes the short resources,
    /// and while `shut` is true nothing starts.
    pub(crate) fn apply_readings(&mut self, signals: &[Signal], red: Vec<String>, shut: bool) {
        let used = self.used();
        let peak = std::mem::replace(&mut self.peak, used).max(used);
        if let Some(window) = &mut self.window {
            window.tick(peak, signals.iter().copied());
        }
        self.congested = signals.iter().any(|signal| *signal != Signal::Green);
        (self.red, self.shut) = (red, shut);
    }

    /// The window state for heartbeats and metrics.
    pub(crate) fn window(&self) -> WindowState {
        let size = self.window.as_ref().map_or(0, Window::size);
        WindowState { size, used: self.used(), red: self.red.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::{Amount, ResourceName};
    use policy::WindowRules;

    use super::*;

    const GB: u64 = 1_000_000_000;

    /// The resources that an action holds, and whether it must be alone.
    type One = (Resources, bool);

    fn slots(count: u64) -> Resources {
        Resources::new(count * 1000, count * GB)
    }

    fn with_gpu(mut resources: Resources) -> Resources {
        let gpu: ResourceName = "gpu".parse().unwrap();
        resources.custom = BTreeMap::from([(gpu, Amount::whole(1))]);
        resources
    }

    fn machine() -> Allocation {
        Allocation::new(
            with_gpu(slots(8)),
            8,
            0,
            Some(Window::new(WindowRules { start: u32::MAX, ..WindowRules::default() }, 8)),
        )
    }

    fn demands(waiting: &[One]) -> impl Iterator<Item = Demand<'_>> {
        waiting.iter().map(|(size, exclusive)| Demand { size, exclusive: *exclusive, emergency: false })
    }

    fn starts(room: &Allocation) -> u16 {
        room.free([]).map_or(0, |free| free.starts)
    }

    /// Starts all actions that fit, and returns them.
    fn start_all(room: &mut Allocation, waiting: &mut Vec<One>) -> Vec<One> {
        let mut started = Vec::new();
        while let Some(index) = room.next(demands(waiting)) {
            let next = waiting.remove(index);
            room.begin(&next.0, next.1);
            started.push(next);
        }
        started
    }

    #[test]
    fn when_an_action_of_eight_slots_ends_eight_of_one_slot_begin_at_once() {
        let mut room = machine();
        room.begin(&slots(8), false);
        let mut waiting = vec![(slots(1), false); 9];
        assert_eq!(start_all(&mut room, &mut waiting), []);
        assert_eq!(starts(&room), 0);
        room.end(&slots(8));
        assert_eq!(start_all(&mut room, &mut waiting).len(), 8);
        assert_eq!(waiting.len(), 1);
        assert_eq!(
            room.free([]),
            Some(FreeRoom {
                resources: with_gpu(Resources::default()),
                starts: 0,
                kept: KeptRoom::default()
            })
        );
    }

    #[test]
    fn an_action_waits_for_a_busy_gpu_while_others_flow() {
        let mut room = machine();
        let gpu = with_gpu(slots(1));
        room.begin(&gpu, false);
        let mut waiting = vec![(gpu.clone(), false), (slots(1), false), (slots(2), false)];
        assert_eq!(start_all(&mut room, &mut waiting), [(slots(1), false), (slots(2), false)]);
        room.end(&gpu);
        assert_eq!(start_all(&mut room, &mut waiting), [(gpu, false)]);
    }

    #[test]
    fn what_waits_for_a_gpu_is_not_passed_by_one_that_needs_less_of_it() {
        let mut capacity = with_gpu(slots(8));
        capacity.custom.values_mut().for_each(|amount| *amount = Amount::whole(2));
        let mut room = Allocation::new(capacity, 8, 0, None);
        let one = with_gpu(slots(1));
        let mut two = one.clone();
        two.add(&Resources { custom: one.custom.clone(), ..Resources::default() });
        room.begin(&one, false);
        let mut waiting = vec![(two.clone(), false), (one.clone(), false), (slots(1), false)];
        assert_eq!(start_all(&mut room, &mut waiting), [(slots(1), false)]);
        room.end(&one);
        assert_eq!(start_all(&mut room, &mut waiting), [(two, false)]);
    }

    #[test]
    fn what_does_not_fit_is_not_passed_by_what_does() {
        let mut room = machine();
        room.begin(&slots(2), false);
        let mut waiting = vec![(slots(7), false), (slots(1), false)];
        assert_eq!(start_all(&mut room, &mut waiting), []);
        // The request for work leaves the room for it.
        let free = room.free(demands(&waiting)).unwrap().resources;
        assert_eq!((free.cpu_millis, free.memory_bytes), (0, 0));
        room.end(&slots(2));
        assert_eq!(start_all(&mut room, &mut waiting).len(), 2);
    }

    #[test]
    fn an_exclusive_action_runs_alone_and_is_passed_by_none() {
        let mut room = machine();
        room.begin(&slots(1), false);
        let mut waiting = vec![(slots(8), true), (slots(1), false)];
        assert_eq!(start_all(&mut room, &mut waiting), []);
        assert_eq!(room.free(demands(&waiting)), None);
        room.end(&slots(1));
        // Nothing starts beside it even if it asks for little.
        let mut waiting = vec![(slots(1), true), (slots(1), false)];
        assert_eq!(start_all(&mut room, &mut waiting), [(slots(1), true)]);
        assert_eq!(room.free([]), None);
        room.end(&slots(1));
        assert_eq!(start_all(&mut room, &mut waiting), [(slots(1), false)]);
    }

    #[test]
    fn one_that_is_larger_than_all_there_is_runs_alone() {
        let mut room = machine();
        let mut waiting = vec![(slots(9), false), (slots(1), false)];
        assert_eq!(start_all(&mut room, &mut waiting), [(slots(9), false)]);
    }

    #[test]
    fn a_window_that_was_cut_lets_nothing_begin_before_enough_has_ended() {
        let mut room = machine();
        assert_eq!(start_all(&mut room, &mut vec![(slots(1), false); 8]).len(), 8);
        assert!(!room.is_closed(), "all slots are busy, and nothing is short");
        room.apply_readings(&[Signal::Red], vec!["no memory is left".to_owned()], false);
        assert_eq!(room.window().size, 60);
        for left in (6..8).rev() {
            room.end(&slots(1));
            assert_eq!((room.started(), starts(&room)), (left, 0));
            assert!(room.is_closed());
            assert_eq!(start_all(&mut room, &mut vec![(slots(1), false)]), []);
        }
        room.end(&slots(1));
        assert_eq!(starts(&room), 1);
        assert!(!room.is_closed() && room.is_short());
        assert_eq!(start_all(&mut room, &mut vec![(slots(1), false); 2]).len(), 1);
    }

    #[test]
    fn what_is_kept_is_used_by_emergencies_alone() {
        let mut room = Allocation::new(slots(4), 4, 2, None);
        let one = slots(1);
        let demand = |emergency| [Demand { size: &one, exclusive: false, emergency }];
        for started in 0..2 {
            let kept = KeptRoom { starts: 2, resources: slots(2) };
            let free = FreeRoom { resources: slots(4 - started), starts: 4 - room.started(), kept };
            assert_eq!(room.free([]), Some(free));
            assert_eq!(room.next(demand(false)), Some(0));
            room.begin(&one, false);
        }
        assert_eq!(room.free([]).unwrap().starts_of_others(), 0);
        assert_eq!((room.next(demand(false)), room.next(demand(true))), (None, Some(0)));
        room.begin(&one, false);
        room.begin(&one, false);
        assert_eq!(room.next(demand(true)), None, "no slot is free");
        room.end(&one);
        room.end(&one);
        assert_eq!(room.next(demand(false)), None, "two are kept again");
    }

    #[test]
    fn the_first_action_starts_whatever_is_kept_and_however_small_the_window() {
        let whole = slots(4);
        let room = Allocation::new(whole.clone(), 4, 3, None);
        let demand = Demand { size: &whole, exclusive: false, emergency: false };
        assert_eq!(room.next([demand]), Some(0));
        let narrow = Allocation::new(
            whole,
            4,
            3,
            Some(Window::new(WindowRules { start: 10, ..WindowRules::default() }, 4)),
        );
        let free = narrow.free([]).unwrap();
        assert_eq!(
            (free.starts, free.starts_of_others()),
            (1, 1),
            "the window keeps nothing for emergencies"
        );
        assert_eq!((free.clone().limited(0).starts, free.limited(0).kept.starts), (0, 0));
    }

    #[test]
    fn nothing_begins_while_it_is_shut() {
        let mut room = machine();
        room.apply_readings(&[Signal::Green], vec!["it is paused".to_owned()], true);
        assert_eq!(start_all(&mut room, &mut vec![(slots(1), false)]), []);
        assert_eq!(room.free([]), None);
        assert!(room.is_closed());
        room.apply_readings(&[Signal::Green], Vec::new(), false);
        assert_eq!(starts(&room), 8);
    }
}
