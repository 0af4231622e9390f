use super::*;

fn home(index: usize) -> ExecutorHome {
    format!("home-{index}").parse().unwrap()
}

#[test]
fn warmth_is_forgotten_after_a_failure_and_outlives_one_other_success() {
    let mut warmth = Warmth::new(100);
    let keys = [ActionKey(1), ActionKey(2)];
    warmth.learn(&keys, &home(1), true);
    warmth.learn(&keys[1..], &home(2), true);
    assert_eq!(warmth.homes(&keys), [home(1), home(2)]);
    warmth.learn(&keys[..1], &home(1), false);
    assert_eq!(warmth.homes(&keys[..1]), []);
    warmth.learn(&[ActionKey(3)], &home(1), false);
    assert_eq!(warmth.homes(&[ActionKey(3)]), []);
}

#[test]
fn what_was_used_longest_ago_is_forgotten_first() {
    let mut warmth = Warmth::new(3);
    for key in [1, 2, 3, 1, 4] {
        warmth.learn(&[ActionKey(key)], &home(0), true);
    }
    assert_eq!(warmth.homes(&[ActionKey(2)]), []);
    assert_eq!(warmth.homes(&[ActionKey(1)]), [home(0)]);
    for _ in 0..1000 {
        warmth.learn(&[ActionKey(4)], &home(0), true);
    }
    assert!(warmth.len() <= 3 && warmth.order.len() <= 6);
}
