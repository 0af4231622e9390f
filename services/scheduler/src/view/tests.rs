use model::{Demand, Millis, WindowState};

use super::*;

fn id(name: &str) -> ExecutorId {
    name.parse().unwrap()
}

fn pool() -> PoolName {
    "default".parse().unwrap()
}

fn size() -> Resources {
    Resources::new(1000, 1 << 30)
}

fn execution() -> ExecutionKey {
    ExecutionKey {
        group: "default".parse().unwrap(),
        id: "01a20147-c802-7698-9ec9-52bb8002bcae".parse().unwrap(),
    }
}

/// A view of these executors, each with room for two.
fn of(names: &[&str]) -> View {
    let view = View::default();
    for name in names {
        view.heartbeat(&ExecutorHeartbeat {
            executor: id(name),
            pool: pool(),
            host: String::new(),
            home: (*name).parse().unwrap(),
            pid: 1,
            started_at_ms: Millis(0),
            status: ExecutorStatus::Ready,
            slots: 2,
            capacity: Resources::new(2000, 4 << 30),
            held: Resources::default(),
            running: Vec::new(),
            queued: 0,
            window: WindowState::default(),
            ttl_ms: 60_000,
            clock_skew_ms: None,
        });
    }
    view
}

fn claimed(executor: &str, sequence: u64) -> ClaimNotice {
    let claim = ClaimedAt { execution: execution(), sequence: Sequence(sequence) };
    ClaimNotice { executor: id(executor), free: size(), starts: 1, claimed: vec![claim] }
}

#[test]
fn whoever_was_told_forgets_what_another_claimed() {
    let view = of(&["one", "two"]);
    view.note_notified(&execution(), Sequence(5), vec![id("one"), id("two")], 0);
    let trim = view.note_answer(&claimed("one", 5));
    assert_eq!(trim, HashMap::from([(id("two"), vec![execution()])]));
    assert!(view.all_claimed(&[execution()]));
}

#[test]
fn a_claim_heard_of_late_does_not_take_back_what_was_told_since() {
    let view = of(&["one", "two"]);
    view.note_notified(&execution(), Sequence(5), vec![id("one"), id("two")], 0);
    // Another copy is requested before the claim of the first arrives.
    view.waits_again(&execution());
    view.note_notified(&execution(), Sequence(6), vec![id("one"), id("two")], 0);
    assert_eq!(view.note_answer(&claimed("one", 5)), HashMap::new());
    assert!(!view.all_claimed(&[execution()]));
    assert_eq!(view.note_answer(&claimed("two", 6)), HashMap::from([(id("one"), vec![execution()])]));
}

#[test]
fn who_has_a_copy_is_not_woken_for_another() {
    let view = of(&["one", "two"]);
    let demand = Demand { size: size(), ..Demand::default() };
    let waiting = Waiting { key: execution(), demand, holders: vec![id("one")] };
    assert_eq!(view.with_room(&pool(), &[&waiting]), [id("two")]);
    // It is woken for another execution that it can run.
    let other = Waiting { holders: Vec::new(), ..waiting.clone() };
    assert_eq!(view.with_room(&pool(), &[&waiting, &other]).len(), 2);
}

#[test]
fn who_is_too_small_for_what_waits_is_not_woken_for_it() {
    let view = of(&["one"]);
    let wanting = |cpu_millis| {
        let asked = Some(Resources::new(cpu_millis, 1 << 30));
        Waiting {
            key: execution(),
            demand: Demand { size: size(), asked, ..Demand::default() },
            holders: Vec::new(),
        }
    };
    assert_eq!(view.with_room(&pool(), &[&wanting(2000)]), [id("one")]);
    assert_eq!(view.with_room(&pool(), &[&wanting(2001)]), []);
}
