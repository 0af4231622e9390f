use std::collections::BTreeMap;

use model::{Amount, KeptRoom, Priority};
use policy::{Window, WindowRules, actions::image_demand};

use super::*;
use crate::testing;

const GB: u64 = 1_000_000_000;

fn slots(count: u64) -> Resources {
    Resources::new(count * 1000, count * GB)
}

fn actions(count: u16) -> HeldActions {
    let window = Window::new(WindowRules { start: u32::MAX, ..WindowRules::default() }, count);
    HeldActions::new(Allocation::new(slots(u64::from(count)), count, 0, Some(window)), 0)
}

fn sized(size: Resources) -> Claimed {
    Claimed { size, ..testing::claimed() }
}

/// Accepts actions in the images of their records, none of which is here.
fn accept_all(actions: &HeldActions, number: u64, all: Vec<Claimed>) -> Answers {
    let images = |claimed: &Claimed| match image_demand(&claimed.record.execution) {
        None => NeededImages::Here(ActionImages::default()),
        Some(demand) => NeededImages::Missing { demand, unpacked: false },
    };
    actions.accept_all(number, all, images, |_, _| None)
}

fn accept(actions: &HeldActions, claimed: Claimed) -> ExecutionKey {
    let key = claimed.record.execution.key();
    assert!(accept_all(actions, 0, vec![claimed]).refused.is_empty());
    key
}

/// Ends the action in its slot; returns the actions that start then.
fn leave(actions: &HeldActions, work: &Work) -> Vec<Work> {
    actions.leave_slot(&work.key(), &work.handle, &work.claimed.size)
}

fn is_room_to_report(actions: &HeldActions) -> bool {
    futures::FutureExt::now_or_never(actions.room_changed.notified()).is_some()
}

/// Number of actions that can start now, and of further ones.
fn room(actions: &HeldActions) -> (u16, u16) {
    let room = actions.room();
    (room.starts, room.ahead)
}

#[test]
fn when_an_action_of_eight_slots_ends_eight_begin_in_one_wake_up() {
    let actions = actions(8);
    accept(&actions, sized(slots(8)));
    let large = actions.start();
    for _ in 0..8 {
        accept(&actions, sized(slots(1)));
    }
    assert!(large.len() == 1 && actions.start().is_empty());
    assert_eq!(leave(&actions, &large[0]).len(), 8);
    // Its end is still being written, and heartbeats name it until then.
    assert_eq!(actions.keys().len(), 9);
    assert_eq!(room(&actions), (0, 0));
}

#[test]
fn services_that_are_ready_hold_no_room_and_end_without_freeing_any() {
    let actions = actions(1);
    let key = accept(&actions, sized(slots(1)));
    let services = actions.start().remove(0);
    accept(&actions, sized(slots(1)));
    assert!(actions.start().is_empty(), "they hold the only slot until they are ready");
    let user = actions.serve(&key, &services.handle, &services.claimed.size).remove(0);
    assert!(is_room_to_report(&actions) && room(&actions).0 == 0);
    actions.end_serving(&key, &services.handle);
    assert_eq!(room(&actions).0, 0, "the other still runs");
    actions.release(&key, &services.handle);
    leave(&actions, &user);
    assert!(!actions.has(&key) && room(&actions).0 == 1);
}

#[test]
fn each_report_of_room_has_the_next_number_and_says_what_is_free() {
    let actions = actions(2);
    let report = |number, granted, starts, idle| Room {
        number,
        granted,
        free: slots(starts),
        starts: u16::try_from(starts).unwrap(),
        idle,
        ..Room::default()
    };
    assert_eq!(actions.room(), report(1, 0, 2, true));
    let two = vec![sized(slots(1)), sized(slots(1))];
    assert!(accept_all(&actions, 7, two).refused.is_empty());
    let work = actions.start();
    assert_eq!((work.len(), actions.room()), (2, report(2, 7, 0, false)));
    assert!(leave(&actions, &work[0]).is_empty());
    assert_eq!(actions.room(), report(3, 7, 1, false));
    actions.note_granted(5);
    assert_eq!(actions.room().granted, 7);
    actions.note_granted(9);
    assert_eq!(actions.room().granted, 9);
}

#[test]
fn a_report_says_which_part_of_the_room_is_kept_for_emergencies() {
    let actions = HeldActions::new(Allocation::new(slots(4), 4, 1, None), 0);
    let kept = |starts| KeptRoom { starts, resources: slots(1) };
    assert_eq!((actions.room().starts, actions.room().kept), (4, kept(1)));
    accept(&actions, sized(slots(3)));
    actions.start();
    assert_eq!((actions.room().free, actions.room().kept), (slots(1), kept(1)));
    actions.set_draining(true);
    assert_eq!(actions.room().kept, KeptRoom::default(), "it accepts nothing");
}

#[test]
fn an_emergency_goes_before_what_was_claimed_ahead() {
    let actions = actions(1);
    let running = accept(&actions, sized(slots(1)));
    let first = actions.start();
    assert_eq!(first[0].key(), running);
    let ahead = accept(&actions, sized(slots(1)));
    let urgent = || {
        let mut claimed = sized(slots(1));
        claimed.record.execution.band = Priority::Emergency;
        claimed
    };
    let emergencies = [accept(&actions, urgent()), accept(&actions, urgent())];
    let [one] = leave(&actions, &first[0]).try_into().unwrap();
    let [two] = leave(&actions, &one).try_into().unwrap();
    let [last] = leave(&actions, &two).try_into().unwrap();
    assert_eq!(([one.key(), two.key()], last.key()), (emergencies, ahead));
}

#[test]
fn what_is_in_hand_is_not_begun_twice_but_after_its_end() {
    let actions = actions(2);
    let claimed = sized(slots(1));
    let key = accept(&actions, claimed.clone());
    accept(&actions, claimed.clone());
    let first = actions.start();
    accept(&actions, claimed.clone());
    assert!(first.len() == 1 && actions.start().is_empty());
    leave(&actions, &first[0]);
    // Its end requeues it, and it is claimed again before this executor hears that the end was written.
    accept(&actions, claimed);
    let second = actions.start();
    assert_eq!(second.len(), 1);
    actions.release(&key, &first[0].handle);
    assert!(actions.has(&key), "the second handle is another");
    leave(&actions, &second[0]);
    actions.release(&key, &second[0].handle);
    assert!(!actions.has(&key));
}

#[test]
fn short_actions_are_taken_ahead_and_asked_for_in_batches() {
    let actions = actions(8);
    for _ in 0..400 {
        accept(&actions, sized(slots(1)));
        let work = actions.start();
        leave(&actions, &work[0]);
        actions.release(&work[0].key(), &work[0].handle);
    }
    assert_eq!(room(&actions), (8, 32));
    for _ in 0..40 {
        accept(&actions, sized(slots(1)));
    }
    let mut running = actions.start();
    assert_eq!((running.len(), room(&actions)), (8, (0, 0)));
    // More than half of the waiting ones are left.
    for _ in 0..15 {
        let next = leave(&actions, &running.remove(0));
        assert_eq!(next.len(), 1);
        running.extend(next);
    }
    assert_eq!(room(&actions), (0, 0));
    let next = leave(&actions, &running.remove(0));
    running.extend(next);
    assert_eq!((room(&actions), actions.room().idle), ((0, 16), false));
}

#[test]
fn what_waits_in_hand_too_long_is_for_others() {
    let actions = actions(1);
    accept(&actions, sized(slots(1)));
    assert_eq!(actions.start().len(), 1);
    let key = accept(&actions, sized(slots(1)));
    let fresh = accept(&actions, sized(slots(1)));
    assert!(actions.remove_stuck().is_empty());
    actions.state.lock().waiting[0].since = Instant::now().checked_sub(2 * AHEAD_PATIENCE).unwrap();
    assert_eq!(actions.remove_stuck(), std::slice::from_ref(&key));
    assert!(!actions.has(&key) && actions.has(&fresh));
}

#[test]
fn one_that_drains_takes_nothing_and_gives_back_what_has_not_begun() {
    let actions = actions(1);
    let running = accept(&actions, sized(slots(1)));
    let work = actions.start();
    let waiting = accept(&actions, sized(slots(1)));
    actions.set_draining(true);
    assert_eq!(actions.status(), ExecutorStatus::Draining);
    let late = sized(slots(1));
    let key = late.record.execution.key();
    assert_eq!(accept_all(&actions, 1, vec![late]).refused, [key]);
    assert_eq!(actions.remove_all_waiting(), [waiting]);
    assert_eq!((actions.keys(), room(&actions)), (vec![running.clone()], (0, 0)));
    assert!(leave(&actions, &work[0]).is_empty());
    actions.release(&running, &work[0].handle);
    assert!(futures::FutureExt::now_or_never(actions.all_done()).is_some());
    actions.set_draining(false);
    assert!(actions.room().is_open());
}

#[test]
fn one_that_is_stopped_before_it_begins_is_gone_at_once() {
    let actions = actions(1);
    let running = accept(&actions, sized(slots(1)));
    let work = actions.start();
    let waiting = accept(&actions, sized(slots(1)));
    actions.stop(&waiting);
    actions.stop(&running);
    assert!(!actions.has(&waiting) && actions.has(&running));
    assert!(work[0].handle.stop.is_cancelled());
}

#[test]
fn no_more_fetch_their_inputs_than_may() {
    let actions = HeldActions::new(Allocation::new(slots(8), 8, 0, None), 2);
    assert_eq!(room(&actions).0, 2);
    let key = accept(&actions, sized(slots(1)));
    let work = actions.start();
    assert_eq!((actions.starting(), room(&actions).0), (1, 1));
    let outputs = Outputs { stdout: "out".into(), stderr: "err".into() };
    actions.set_outputs(&key, &work[0].handle, outputs);
    assert_eq!((actions.starting(), room(&actions).0), (0, 2));
    assert!(is_room_to_report(&actions));
}

#[test]
fn an_exclusive_action_keeps_everything_else_away() {
    let actions = actions(4);
    let mut claimed = sized(slots(4));
    claimed.record.execution.needs.exclusive = true;
    accept(&actions, claimed);
    let alone = actions.start();
    accept(&actions, sized(slots(1)));
    assert!(actions.start().is_empty());
    assert_eq!(room(&actions), (0, 0));
    assert_eq!(leave(&actions, &alone[0]).len(), 1);
}

#[test]
fn a_gpu_is_waited_for_while_processors_are_used() {
    let gpu = |size: Resources| Resources {
        custom: BTreeMap::from([("gpu".parse().unwrap(), Amount::whole(1))]),
        ..size
    };
    let actions = HeldActions::new(Allocation::new(gpu(slots(4)), 4, 0, None), 0);
    accept(&actions, sized(gpu(slots(1))));
    let first = actions.start();
    let second = accept(&actions, sized(gpu(slots(1))));
    accept(&actions, sized(slots(1)));
    let passed = actions.start();
    assert!(passed.len() == 1 && passed[0].key() != second);
    let next = leave(&actions, &first[0]);
    assert_eq!(next.iter().map(Work::key).collect::<Vec<_>>(), [second]);
}

#[test]
fn a_window_that_opens_has_the_room_filled() {
    let actions = actions(4);
    accept(&actions, sized(slots(1)));
    let work = actions.start();
    let red = vec!["no memory is left".to_owned()];
    let (_, is_open) = actions.apply_readings(&[Signal::Red], red, false);
    assert!(!is_open && !actions.room().is_open());
    assert_eq!((actions.status(), actions.load().window.size), (ExecutorStatus::Closed, 10));
    assert!(actions.needs_readings() && is_room_to_report(&actions));
    let (_, is_open) = actions.apply_readings(&[Signal::Green], Vec::new(), false);
    assert!(is_open && is_room_to_report(&actions));
    assert_eq!(room(&actions).0, 1);
    leave(&actions, &work[0]);
}

fn in_image(registry: &str) -> Claimed {
    let mut claimed = sized(slots(1));
    let reference: model::ImageReference = format!("docker://{registry}/a").parse().unwrap();
    let manifest = model::Digest::of(registry.as_bytes());
    let reference = reference.pinned(manifest.clone());
    claimed.record.execution.image = Some(model::PinnedImage { reference, manifest: manifest.of_size(1) });
    claimed
}

#[test]
fn an_action_whose_image_is_fetched_holds_nothing_and_starts_when_the_image_is_there() {
    let actions = actions(2);
    let waiting =
        accept_all(&actions, 1, vec![in_image("hangs.example"), in_image("hangs.example")]).fetching;
    assert!(actions.start().is_empty() && is_room_to_report(&actions));
    let room = actions.room();
    let fetches = room.fetches.unwrap();
    assert_eq!((room.starts, room.idle, fetches.left, fetches.full.len()), (2, true, 6, 1));
    assert_eq!((actions.load().held, actions.keys().len()), (Resources::default(), 2));
    // Others start beside it.
    accept(&actions, sized(slots(1)));
    assert_eq!(actions.start().len(), 1);
    let here = |at: usize| {
        actions.images_here(&waiting[at].1, (ActionImages::default(), Duration::from_secs(3)), |_, _| None)
    };
    let [first] = here(0).try_into().unwrap();
    assert_eq!((first.key(), first.images_took), (waiting[0].0.key(), Duration::from_secs(3)));
    assert!(here(0).is_empty() && here(1).is_empty(), "it is known already, or no slot is free");
    assert_eq!(leave(&actions, &first)[0].key(), waiting[1].0.key());
    assert_eq!(actions.room().fetches, None);
}

#[test]
fn no_more_wait_for_a_registry_than_may_and_others_are_fetched_meanwhile() {
    let actions = actions(1);
    let two = vec![in_image("hangs.example"), in_image("hangs.example"), in_image("answers.example")];
    let keys: Vec<_> = two.iter().map(|it| it.record.execution.key()).collect();
    let answers = accept_all(&actions, 1, two);
    assert_eq!(answers.refused, [keys[1].clone()]);
    let fetching: Vec<_> = answers.fetching.iter().map(|(execution, _)| execution.key()).collect();
    assert_eq!(fetching, [keys[0].clone(), keys[2].clone()]);
    assert!(!actions.has(&keys[1]), "it can be claimed again");
    // One whose image cannot be fetched leaves, and so does one that is stopped.
    let failed = actions.images_failed(&answers.fetching[0].1).unwrap();
    assert!(actions.has(&failed.key()), "its end is still to be written");
    actions.stop(&keys[2]);
    assert!(answers.fetching[1].1.stop.is_cancelled() && !actions.has(&keys[2]));
    assert!(actions.images_failed(&answers.fetching[1].1).is_none());
    assert_eq!(actions.room().fetches, None);
}

#[test]
fn one_that_drains_returns_what_waits_for_images() {
    let actions = actions(1);
    let waiting = accept_all(&actions, 1, vec![in_image("hangs.example")]).fetching;
    actions.set_draining(true);
    assert_eq!(actions.remove_all_waiting(), [waiting[0].0.key()]);
    let images = (ActionImages::default(), Duration::ZERO);
    assert!(actions.images_here(&waiting[0].1, images, |_, _| None).is_empty() && !actions.holds_any());
}
