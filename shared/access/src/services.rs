//! What the services of a farm may do on its bus.

use bus::{EachOf, LiveSubjects, Rights, Subject, WrittenSubjects, stream};
use model::Priority;

use crate::{Role, ServiceName};

/// The rights of a service in its account.
pub fn rights_of(service: &ServiceName) -> Rights {
    let mut rights = Rights::with_inbox(&service.bus_user().inbox());
    let rights_of_role = match service.role() {
        Role::Enqueuer => enqueuer(&mut rights),
        Role::Dispatcher => dispatcher(&mut rights),
        Role::Governor => governor(&mut rights),
        Role::Trainer => trainer(&mut rights),
        Role::Autoscaler => autoscaler(&mut rights),
        Role::Reaper => reaper(&mut rights),
        Role::Archive => archive(&mut rights),
        Role::Scheduler => scheduler(&mut rights),
        Role::Gateway => gateway(&mut rights),
        Role::Web => web(&mut rights),
        Role::Cas => cas(&mut rights),
        Role::Worker => worker(&mut rights, service.instance()),
        Role::Executor => executor(&mut rights, service.instance()),
        Role::Operator => operator(&mut rights),
        Role::Topology => rights.take_part().apply_topology(),
        Role::Supervisor => supervisor(&mut rights),
        Role::Monitor => rights.monitor(),
    };
    rights_of_role.clone()
}

/// What processes with a store of blobs need, which may be the first of the farm.
fn store(rights: &mut Rights) -> &mut Rights {
    use_store(rights.write(&[WrittenSubjects::FarmRecord]))
}

/// What processes with a store of blobs exchange.
fn use_store(rights: &mut Rights) -> &mut Rights {
    rights.send(&[Subject::CasUsage, Subject::CasState]).receive(&[Subject::CasUsage, Subject::CasState])
}

fn enqueuer(rights: &mut Rights) -> &mut Rights {
    for priority in Priority::ALL {
        rights.drain(stream::REQUESTS, &jetstream::request_consumer(priority));
    }
    for read in [
        stream::LEASES,
        stream::MODELS,
        stream::QUOTA,
        stream::ENVIRONMENTS,
        stream::EXECUTORS,
        stream::SCALE,
    ] {
        rights.read(read);
    }
    rights
        .take_part()
        .follow(stream::EVENTS)
        .serve(&[EachOf::Api])
        .answer_with_events()
        .send_to(&[EachOf::Control, EachOf::Archive]);
    // Orders to cancel revoke the lease of a worker that does not answer.
    rights.write(&[WrittenSubjects::Lifecycles, WrittenSubjects::Rejected, WrittenSubjects::Leases]);
    rights.write(&[WrittenSubjects::Audit]);
    rights.hear(&[LiveSubjects::Requests, LiveSubjects::Quotas, LiveSubjects::Models]);
    store(rights)
}

fn dispatcher(rights: &mut Rights) -> &mut Rights {
    rights.take_part().follow(stream::EVENTS).read(stream::QUOTA).hear(&[LiveSubjects::Quotas]);
    rights.send_to(&[EachOf::Offer]).send(&[Subject::Announce]).receive(&[Subject::Heartbeat])
}

fn governor(rights: &mut Rights) -> &mut Rights {
    rights.take_part().read(stream::QUOTA).read(stream::EXECUTORS).hear(&[LiveSubjects::Quotas]);
    rights.write(&[WrittenSubjects::Decisions]).send(&[Subject::ExecutorAnnounce]);
    rights.receive(&[Subject::Usage, Subject::ExecutorHeartbeat])
}

fn trainer(rights: &mut Rights) -> &mut Rights {
    rights.take_part().follow(stream::EVENTS).read(stream::MODELS).send_to(&[EachOf::Archive]);
    store(rights.write(&[WrittenSubjects::Models]))
}

fn autoscaler(rights: &mut Rights) -> &mut Rights {
    rights.take_part().follow(stream::EVENTS).follow(stream::ACTIONS);
    rights.read(stream::QUOTA).hear(&[LiveSubjects::Quotas]);
    rights.read(stream::SCALE).read(stream::EXECUTORS).write(&[WrittenSubjects::Scale])
}

fn reaper(rights: &mut Rights) -> &mut Rights {
    rights.take_part().read(stream::EVENTS).read(stream::LEASES).hear_advisories();
    rights.drain(stream::LEASES, jetstream::LEASE_CONSUMER).send_to(&[EachOf::Control]);
    rights.write(&[WrittenSubjects::Lifecycles, WrittenSubjects::Leases])
}

fn archive(rights: &mut Rights) -> &mut Rights {
    rights.take_part().follow(stream::EVENTS).follow(stream::ACTIONS).follow(stream::BAZEL);
    rights.follow(stream::AUDIT);
    store(rights.serve(&[EachOf::Archive]).write(&[WrittenSubjects::ArchivedBlobs]))
}

fn scheduler(rights: &mut Rights) -> &mut Rights {
    rights.take_part().follow(stream::ACTIONS).read(stream::EXECUTORS);
    rights.read(stream::QUOTA).hear(&[LiveSubjects::Quotas]);
    rights.drain(stream::EXECUTORS, jetstream::EXECUTOR_CONSUMER);
    rights.send_to(&[EachOf::ExecutorGrant, EachOf::ExecutorControl]);
    rights.send(&[Subject::ExecutorAnnounce, Subject::ExecutorGranted, Subject::ExecutionsAgain]);
    // The lease of an executor that is certainly gone is purged.
    let written =
        [WrittenSubjects::Executions, WrittenSubjects::ExecutorLeases, WrittenSubjects::ActionsFloor];
    rights.write(&written).receive(&[
        Subject::ExecutorRoom,
        Subject::ExecutorHeartbeat,
        Subject::ExecutorHandOver,
        Subject::ExecutorGranted,
        Subject::ExecutionsAgain,
        Subject::PoolChanged,
    ])
}

/// What the HTTP API and the pages need.
fn pages(rights: &mut Rights) -> &mut Rights {
    rights.take_part().follow(stream::EVENTS);
    for read in [
        stream::ACTIONS,
        stream::BAZEL,
        stream::QUOTA,
        stream::DECISIONS,
        stream::ENVIRONMENTS,
        stream::EXECUTORS,
        stream::SCALE,
        stream::MODELS,
        stream::LOGS,
        stream::AUDIT,
    ] {
        rights.read(read);
    }
    rights.send_to(&[EachOf::Api, EachOf::Archive, EachOf::Control]);
    rights.send_to(&[EachOf::ExecutorControl, EachOf::ExecutorOutput]);
    rights.write(&[WrittenSubjects::Quotas, WrittenSubjects::Environments, WrittenSubjects::Audit]);
    rights.hear(&[LiveSubjects::Builds, LiveSubjects::Executions, LiveSubjects::Quotas]);
    store(rights)
}

fn gateway(rights: &mut Rights) -> &mut Rights {
    pages(rights).hear(&[LiveSubjects::Logs, LiveSubjects::Environments]).answer();
    rights.write(&[
        WrittenSubjects::Executions,
        WrittenSubjects::Logs,
        WrittenSubjects::BazelEvents,
        WrittenSubjects::BazelBlobs,
    ]);
    rights.send(&[Subject::ExecutionWaiters, Subject::GatewayChanged]);
    rights.receive(&[Subject::ExecutionWaiters, Subject::GatewayWhere, Subject::PoolChanged])
}

fn web(rights: &mut Rights) -> &mut Rights {
    pages(rights)
}

fn cas(rights: &mut Rights) -> &mut Rights {
    rights.take_part().follow(stream::EVENTS).follow(stream::BAZEL);
    rights.read(stream::REQUESTS).read(stream::MODELS).read(stream::ENVIRONMENTS);
    rights.hear(&[LiveSubjects::Environments, LiveSubjects::Builds]).send_to(&[EachOf::Api]);
    store(rights.write(&[
        WrittenSubjects::Environments,
        WrittenSubjects::EarlierStore,
        WrittenSubjects::Audit,
    ]))
}

fn worker<'a>(rights: &'a mut Rights, name: &str) -> &'a mut Rights {
    rights.take_part().read_records().read(stream::LEASES).read(stream::ENVIRONMENTS).answer();
    rights.receive_as(&[EachOf::Offer, EachOf::Control, EachOf::ActionUsage], name);
    rights.receive(&[Subject::Announce, Subject::GatewayChanged, Subject::PoolChanged]);
    rights.send(&[Subject::Heartbeat, Subject::Usage]);
    rights.send_to(&[EachOf::ExecutorServices]);
    use_store(rights.write(&[
        WrittenSubjects::Lifecycles,
        WrittenSubjects::RunEvents,
        WrittenSubjects::BazelBlobs,
        WrittenSubjects::Leases,
        WrittenSubjects::WorkerProperties,
    ]))
}

fn executor<'a>(rights: &'a mut Rights, name: &str) -> &'a mut Rights {
    rights.take_part().read(stream::ACTIONS).read(stream::EXECUTORS).read(stream::ENVIRONMENTS).answer();
    let received =
        [EachOf::ExecutorGrant, EachOf::ExecutorControl, EachOf::ExecutorServices, EachOf::ExecutorOutput];
    rights.receive_as(&received, name);
    rights.receive(&[Subject::ExecutorAnnounce]);
    rights.hear(&[LiveSubjects::Environments]).send_to(&[EachOf::ActionUsage]).report_progress();
    rights.send(&[
        Subject::ExecutorHeartbeat,
        Subject::ExecutorRoom,
        Subject::ExecutorHandOver,
        Subject::Usage,
        Subject::PoolChanged,
    ]);
    let lease = WrittenSubjects::ExecutorLeasesOf(name.to_owned());
    use_store(rights.write(&[WrittenSubjects::Executions, lease, WrittenSubjects::Pools]))
}

/// It applies the topology, watches whether streams accept writes, and starts and drains the processes of its machine.
fn supervisor(rights: &mut Rights) -> &mut Rights {
    rights.take_part().apply_topology().check_writes().read(stream::SCALE).follow(stream::SCALE);
    rights.send_to(&[EachOf::Control, EachOf::ExecutorControl]);
    rights.send(&[Subject::Announce, Subject::ExecutorAnnounce]);
    store(rights.receive(&[Subject::Heartbeat, Subject::ExecutorHeartbeat]).hear(&[LiveSubjects::Scale]))
}

fn operator(rights: &mut Rights) -> &mut Rights {
    pages(rights).read(stream::LEASES).read(stream::REJECTED).follow(stream::AUDIT);
    rights.write(&[WrittenSubjects::Requests]).send(&[Subject::Announce, Subject::ExecutorAnnounce]);
    rights.receive(&[Subject::Heartbeat, Subject::ExecutorHeartbeat]);
    rights.hear(&[
        LiveSubjects::Logs,
        LiveSubjects::Models,
        LiveSubjects::Scale,
        LiveSubjects::Environments,
        LiveSubjects::Rejected,
    ])
}
