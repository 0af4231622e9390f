//! What the roles of services may do.

use access::{Instance, Role, ServiceName, rights_of};
use bus::{Subject, stream};

fn all() -> Vec<ServiceName> {
    Role::ALL.map(|role| ServiceName::new(role, Instance::first())).into()
}

#[test]
fn n15_no_service_may_delete_purge_restore_or_copy_a_stream() {
    for service in all() {
        let rights = rights_of(&service);
        for call in ["DELETE", "PURGE", "RESTORE", "SNAPSHOT", "MSG.DELETE"] {
            let subject = format!("$JS.API.STREAM.{call}.{}", stream::EVENTS);
            // `forebay up`, which has the files of the streams anyway, checks by purges of nothing that they can be written.
            let may = call == "PURGE" && service.role() == Role::Supervisor;
            assert_eq!(rights.may_publish(&subject), may, "{service} {subject}");
        }
        for subject in
            ["$JS.API.CONSUMER.DELETE.FOREBAY_REQUESTS.enqueuer-batch", "$JS.API.META.LEADER.STEPDOWN"]
        {
            assert!(!rights.may_publish(subject), "{service} {subject}");
        }
    }
}

#[test]
fn n8_no_service_may_subscribe_to_everything_or_to_the_inboxes_of_others() {
    for service in all() {
        let rights = rights_of(&service);
        for subject in [">", "_INBOX.>", "_INBOX_enqueuer.2.>", "$SYS.>", "$KV.>", "$JS.>", "forebay.>"] {
            assert!(!rights.may_subscribe(subject), "{service} {subject}");
        }
        assert!(rights.may_subscribe(&format!("{}.*", service.bus_user().inbox())), "{service}");
    }
}

#[test]
fn n6_only_enqueuers_may_receive_and_acknowledge_requests() {
    for service in all() {
        let rights = rights_of(&service);
        let may = service.role() == Role::Enqueuer;
        let consumer = "FOREBAY_REQUESTS.enqueuer-batch";
        for subject in [
            format!("$JS.API.CONSUMER.MSG.NEXT.{consumer}"),
            format!("$JS.ACK.{consumer}.1.2.3.4.5"),
            format!("$JS.ACK._.hash.{consumer}.1.2.3.4.5"),
        ] {
            assert_eq!(rights.may_publish(&subject), may, "{service} {subject}");
        }
    }
}

#[test]
fn a_worker_receives_only_what_is_meant_for_it() {
    let rights = rights_of(&"worker/w-1".parse().unwrap());
    let offers = |id: &str| Subject::Offer(id.parse().unwrap()).to_string();
    assert!(rights.may_subscribe(&offers("w-1.0f")));
    assert!(!rights.may_subscribe(&offers("w-2.0f")));
    assert!(!rights.may_publish(&offers("w-2.0f")));
}
