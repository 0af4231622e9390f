use proptest::prelude::*;

use super::*;

fn state() -> impl Strategy<Value = ConnectionState> {
    use ConnectionState::{Busy, Idle, Sending, Silent};
    prop_oneof![Just(Silent), Just(Sending), Just(Idle), Just(Busy)]
}

fn address(number: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, number])
}

fn connections() -> impl Strategy<Value = Vec<Connection<usize>>> {
    let one = (0..4u8, state(), 0..5000u64);
    proptest::collection::vec(one, 0..40).prop_map(|all| {
        let numbered = all.into_iter().enumerate();
        numbered
            .map(|(key, (number, state, silent_ms))| Connection {
                key,
                client: address(number),
                state,
                silent_ms,
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn what_does_something_is_never_closed(there in connections(), total in 1..30usize, own in 1..30usize, number in 0..4u8) {
        let limits = ConnectionLimits { total, per_client: own.min(total) };
        if let Entry::Replace(key) = enter(address(number), limits, &there) {
            prop_assert!(there[key].is_dispensable());
        }
        if let Some(key) = to_close(&there) {
            prop_assert!(there[key].is_dispensable());
        }
    }

    #[test]
    fn limits_hold_for_whoever_comes(there in connections(), total in 1..30usize, own in 1..30usize, number in 0..4u8) {
        let limits = ConnectionLimits { total, per_client: own.min(total) };
        let client = address(number);
        let mine = there.iter().filter(|one| one.client == client).count();
        match enter(client, limits, &there) {
            Entry::Admit => prop_assert!(mine < limits.per_client && there.len() < limits.total),
            Entry::Replace(key) if mine >= limits.per_client => prop_assert_eq!(there[key].client, client),
            Entry::Replace(_) => prop_assert!(there.len() >= limits.total),
            Entry::Refuse => prop_assert!(
                there.iter().all(|one| !one.is_dispensable() || (mine >= limits.per_client && one.client != client))
            ),
        }
    }

    #[test]
    fn derived_limits_leave_descriptors_for_the_rest(descriptors in 0..2_000_000u64) {
        match ConnectionLimits::new(0, 0, descriptors) {
            Ok(limits) => {
                prop_assert!(limits.total as u64 + DESCRIPTORS_RESERVED <= descriptors);
                prop_assert!(limits.per_client >= 1 && limits.per_client <= limits.total);
            }
            Err(_) => prop_assert!(descriptors < DESCRIPTORS_RESERVED + 2),
        }
    }
}

#[test]
fn who_never_asked_goes_before_who_is_idle() {
    let connection = |key, state, silent_ms| Connection { key, client: address(1), state, silent_ms };
    let there = [
        connection(0, ConnectionState::Idle, 9000),
        connection(1, ConnectionState::Silent, 10),
        connection(2, ConnectionState::Silent, 20),
        connection(3, ConnectionState::Busy, 90_000),
    ];
    let limits = ConnectionLimits { total: 4, per_client: 4 };
    assert_eq!(enter(address(1), limits, &there), Entry::Replace(2));
    assert_eq!(enter(address(2), limits, &there), Entry::Replace(2));
    assert_eq!(enter(address(2), limits, &there[3..]), Entry::Admit);
}

#[test]
fn the_client_that_has_most_makes_room() {
    let connection = |key, number, silent_ms| Connection {
        key,
        client: address(number),
        state: ConnectionState::Idle,
        silent_ms,
    };
    let there = [connection(0, 1, 9000), connection(1, 2, 10), connection(2, 2, 20)];
    let limits = ConnectionLimits { total: 3, per_client: 3 };
    assert_eq!(enter(address(3), limits, &there), Entry::Replace(2));
}

#[test]
fn known_limits() {
    assert_eq!(ConnectionLimits::new(0, 0, 64), Ok(ConnectionLimits { total: 24, per_client: 12 }));
    assert_eq!(ConnectionLimits::new(0, 0, 1024), Ok(ConnectionLimits { total: 512, per_client: 256 }));
    assert_eq!(
        ConnectionLimits::new(0, 0, 65_536),
        Ok(ConnectionLimits { total: 10_000, per_client: 5_000 })
    );
    assert_eq!(ConnectionLimits::new(100, 7, 1024), Ok(ConnectionLimits { total: 100, per_client: 7 }));
    let refused = ConnectionLimits::new(5000, 0, 1024).unwrap_err().to_string();
    assert!(refused.contains("1024") && refused.contains("5040"), "{refused}");
}

#[test]
fn a_body_may_be_slow_and_not_endless() {
    let patience = Duration::from_secs(30);
    assert_eq!(body_time(patience, 0), patience);
    assert_eq!(body_time(patience, 60 * 1024), Duration::from_secs(90));
}
