use std::collections::BTreeMap;

use model::Amount;
use policy::actions::Window;

use super::*;
use crate::{room::Free, testing};

const GB: u64 = 1_000_000_000;

fn slots(count: u64) -> Resources {
    Resources::new(count * 1000, count * GB)
}

fn hands(count: u16) -> Hands {
    let window = Window::new(0, 0, count);
    Hands::new(Room::new(slots(u64::from(count)), count, Some(window)), 0)
}

fn sized(size: Resources) -> Claimed {
    Claimed { size, ..testing::claimed() }
}

fn take(hands: &Hands, claimed: Claimed) -> ExecutionKey {
    let key = claimed.record.execution.key();
    assert!(hands.take(claimed, |_, _| None).is_ok());
    key
}

/// Ends the job in its slot; returns the actions that start then.
fn leave(hands: &Hands, work: &Work) -> Vec<Work> {
    hands.left(&work.key(), &work.hand, &work.claimed.size)
}

fn was_woken(hands: &Hands) -> bool {
    futures::FutureExt::now_or_never(hands.room.notified()).is_some()
}

#[test]
fn when_an_action_of_eight_slots_ends_eight_begin_in_one_wake_up() {
    let hands = hands(8);
    take(&hands, sized(slots(8)));
    let large = hands.start();
    for _ in 0..8 {
        take(&hands, sized(slots(1)));
    }
    assert!(large.len() == 1 && hands.start().is_empty());
    assert_eq!(leave(&hands, &large[0]).len(), 8);
    // Its end is still being written, and heartbeats name it until then.
    assert_eq!(hands.keys().len(), 9);
    assert_eq!(hands.wish(), None);
}

#[test]
fn room_is_asked_to_be_filled_as_soon_as_a_job_has_left_its_slot() {
    let hands = hands(2);
    let all = Wish { free: Free { resources: slots(2), starts: 2 }, ahead: 0, idle: true };
    assert_eq!(hands.wish(), Some(all));
    take(&hands, sized(slots(1)));
    take(&hands, sized(slots(1)));
    let work = hands.start();
    assert_eq!((work.len(), hands.wish()), (2, None));
    assert!(!was_woken(&hands));
    assert!(leave(&hands, &work[0]).is_empty());
    assert!(was_woken(&hands));
    let one = Wish { free: Free { resources: slots(1), starts: 1 }, ahead: 0, idle: false };
    assert_eq!(hands.wish(), Some(one));
}

#[test]
fn what_is_in_hand_is_not_begun_twice_but_after_its_end() {
    let hands = hands(2);
    let claimed = sized(slots(1));
    let key = take(&hands, claimed.clone());
    take(&hands, claimed.clone());
    let first = hands.start();
    take(&hands, claimed.clone());
    assert!(first.len() == 1 && hands.start().is_empty());
    leave(&hands, &first[0]);
    // Its end requeues it, and it is claimed again before this executor hears that the end was written.
    take(&hands, claimed);
    let second = hands.start();
    assert_eq!(second.len(), 1);
    hands.release(&key, &first[0].hand);
    assert!(hands.has(&key), "the second handle is another");
    leave(&hands, &second[0]);
    hands.release(&key, &second[0].hand);
    assert!(!hands.has(&key));
}

#[test]
fn short_actions_are_taken_ahead_and_asked_for_in_batches() {
    let hands = hands(8);
    for _ in 0..400 {
        take(&hands, sized(slots(1)));
        let work = hands.start();
        leave(&hands, &work[0]);
        hands.release(&work[0].key(), &work[0].hand);
    }
    let wish = hands.wish().unwrap();
    assert_eq!((wish.free.starts, wish.ahead), (8, 8));
    for _ in 0..16 {
        take(&hands, sized(slots(1)));
    }
    let mut running = hands.start();
    assert_eq!((running.len(), hands.wish()), (8, None));
    // More than half of the waiting ones are left.
    for _ in 0..3 {
        let next = leave(&hands, &running.remove(0));
        assert_eq!(next.len(), 1);
        running.extend(next);
    }
    assert_eq!(hands.wish(), None);
    let next = leave(&hands, &running.remove(0));
    running.extend(next);
    let wish = hands.wish().unwrap();
    assert_eq!((wish.free.starts, wish.ahead, wish.idle), (0, 4, false));
}

#[test]
fn what_waits_in_hand_too_long_is_for_others() {
    let hands = hands(1);
    take(&hands, sized(slots(1)));
    assert_eq!(hands.start().len(), 1);
    let key = take(&hands, sized(slots(1)));
    let fresh = take(&hands, sized(slots(1)));
    assert!(hands.put_down_stuck().is_empty());
    hands.lock().waiting[0].since = Instant::now().checked_sub(2 * AHEAD_PATIENCE).unwrap();
    assert_eq!(hands.put_down_stuck(), std::slice::from_ref(&key));
    assert!(!hands.has(&key) && hands.has(&fresh));
}

#[test]
fn one_that_drains_takes_nothing_and_gives_back_what_has_not_begun() {
    let hands = hands(1);
    let running = take(&hands, sized(slots(1)));
    let work = hands.start();
    let waiting = take(&hands, sized(slots(1)));
    hands.set_draining(true);
    assert_eq!(hands.status(), ExecutorStatus::Draining);
    let late = sized(slots(1));
    assert_eq!(hands.take(late.clone(), |_, _| None), Err(Box::new(late)));
    assert_eq!(hands.put_down_waiting(), [waiting]);
    assert_eq!((hands.keys(), hands.wish()), (vec![running.clone()], None));
    assert!(leave(&hands, &work[0]).is_empty());
    hands.release(&running, &work[0].hand);
    assert!(futures::FutureExt::now_or_never(hands.all_done()).is_some());
    hands.set_draining(false);
    assert!(hands.wish().is_some());
}

#[test]
fn one_that_is_stopped_before_it_begins_is_gone_at_once() {
    let hands = hands(1);
    let running = take(&hands, sized(slots(1)));
    let work = hands.start();
    let waiting = take(&hands, sized(slots(1)));
    hands.stop(&waiting);
    hands.stop(&running);
    assert!(!hands.has(&waiting) && hands.has(&running));
    assert!(work[0].hand.stop.is_cancelled());
}

#[test]
fn no_more_fetch_their_inputs_than_may() {
    let hands = Hands::new(Room::new(slots(8), 8, None), 2);
    assert_eq!(hands.wish().unwrap().free.starts, 2);
    let key = take(&hands, sized(slots(1)));
    let work = hands.start();
    assert_eq!((hands.starting(), hands.wish().unwrap().free.starts), (1, 1));
    let outputs = Outputs { stdout: "out".into(), stderr: "err".into() };
    hands.set_outputs(&key, &work[0].hand, outputs);
    assert_eq!((hands.starting(), hands.wish().unwrap().free.starts), (0, 2));
    assert!(was_woken(&hands));
}

#[test]
fn an_exclusive_action_keeps_everything_else_away() {
    let hands = hands(4);
    let mut claimed = sized(slots(4));
    claimed.record.execution.needs.exclusive = true;
    take(&hands, claimed);
    let alone = hands.start();
    take(&hands, sized(slots(1)));
    assert!(hands.start().is_empty());
    assert_eq!(hands.wish(), None);
    assert_eq!(leave(&hands, &alone[0]).len(), 1);
}

#[test]
fn a_gpu_is_waited_for_while_processors_are_used() {
    let gpu = |size: Resources| Resources {
        custom: BTreeMap::from([("gpu".parse().unwrap(), Amount::whole(1))]),
        ..size
    };
    let hands = Hands::new(Room::new(gpu(slots(4)), 4, None), 0);
    take(&hands, sized(gpu(slots(1))));
    let first = hands.start();
    let second = take(&hands, sized(gpu(slots(1))));
    take(&hands, sized(slots(1)));
    let passed = hands.start();
    assert!(passed.len() == 1 && passed[0].key() != second);
    let next = leave(&hands, &first[0]);
    assert_eq!(next.iter().map(Work::key).collect::<Vec<_>>(), [second]);
}

#[test]
fn a_window_that_opens_has_the_room_filled() {
    let hands = hands(4);
    take(&hands, sized(slots(1)));
    let work = hands.start();
    let red = vec!["no memory is left".to_owned()];
    let (_, is_open) = hands.look(&[Signal::Red], red, false);
    assert!(!is_open && hands.wish().is_none());
    assert_eq!((hands.status(), hands.fullness().window.size), (ExecutorStatus::Closed, 10));
    assert!(hands.is_watchful() && !was_woken(&hands));
    let (_, is_open) = hands.look(&[Signal::Green], Vec::new(), false);
    assert!(is_open && was_woken(&hands));
    assert_eq!(hands.wish().unwrap().free.starts, 1);
    leave(&hands, &work[0]);
}
