use super::*;

const ID: &str = "0199f3a0-0000-7000-8000-000000000001";

#[test]
fn subjects_survive_the_round_trip() {
    for priority in Priority::ALL {
        let subject = RequestSubject { group: "core".parse().unwrap(), priority };
        assert_eq!(subject.to_string().parse::<RequestSubject>().unwrap(), subject);
    }
    let key = BuildKey { group: "a-b_C".parse().unwrap(), id: ID.parse().unwrap() };
    for kind in EventKind::ALL {
        let subject = EventSubject { key: key.clone(), kind };
        assert_eq!(subject.to_string().parse::<EventSubject>().unwrap(), subject);
        let live = subject.to_string().replace(".event.", ".live.");
        assert_eq!(live.parse::<EventSubject>().unwrap(), subject);
    }
    let lease = LeaseSubject(key);
    assert_eq!(lease.to_string().parse::<LeaseSubject>().unwrap(), lease);
}

#[test]
fn a_leftover_token_is_refused() {
    assert!(format!("forebay.build.event.g.{ID}.bazel").parse::<EventSubject>().is_err());
    assert!(format!("forebay.build.event.g.{ID}.bazel.x.y").parse::<EventSubject>().is_err());
    assert!(format!("forebay.build.event.g.{ID}.lifecycle.x").parse::<EventSubject>().is_err());
    assert!("forebay.build.request.g.urgent".parse::<RequestSubject>().is_err());
    assert!("forebay.build.request.g.batch.x".parse::<RequestSubject>().is_err());
    assert!(format!("$KV.FOREBAY_LEASES.g.{ID}.x").parse::<LeaseSubject>().is_err());
}

#[test]
fn the_subject_of_a_call_of_bazel_has_its_kind() {
    let key = BuildKey { group: "g".parse().unwrap(), id: ID.parse().unwrap() };
    let subject = EventSubject::bazel(&key, &"call-1".parse().unwrap());
    assert_eq!(subject.parse(), Ok(EventSubject { key, kind: EventKind::Bazel }));
}
