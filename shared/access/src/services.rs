//! What the services of a farm may do on its bus.

use bus::{EachOf, LiveSubjects, Rights, Subject, WrittenSubjects, stream};
use model::{ExecutorId, Priority, WorkerId};

use crate::{Role, ServiceName};

/// The prefix of the inboxes of a service.
pub fn inbox_of(service: &ServiceName) -> String {
    Rights::inbox(service.role(), service.instance())
}

/// The rights of a service in its account.
pub fn rights_of(service: &ServiceName) -> Rights {
    let mut rights = Rights::with_inbox(&inbox_of(service));
    let rights_of_role = match service {
        ServiceName::Worker(id) => worker(&mut rights, id),
        ServiceName::Executor(id) => executor(&mut rights, id),
        ServiceName::Of(role, _) => of_role(&mut rights, *role),
    };
    rights_of_role.clone()
}

fn of_role(rights: &mut Rights, role: Role) -> &mut Rights {
    match role {
        Role::Enqueuer => enqueuer(rights),
        Role::Dispatcher => dispatcher(rights),
        Role::Governor => governor(rights),
        Role::Trainer => trainer(rights),
        Role::Autoscaler => autoscaler(rights),
        Role::Reaper => reaper(rights),
        Role::Archive => archive(rights),
        Role::Scheduler => scheduler(rights),
        Role::Gateway => gateway(rights),
        Role::Web => web(rights),
        Role::Cas => cas(rights),
        Role::Operator => operator(rights),
        Role::Topology => rights.take_part().apply_topology(),
        Role::Monitor => rights.monitor(),
    }
}

/// What processes with a store of blobs exchange.
fn store(rights: &mut Rights) -> &mut Rights {
    rights.write(&[WrittenSubjects::FarmRecord]);
    rights.send(&[Subject::CasUsage, Subject::CasState]).receive(&[Subject::CasUsage, Subject::CasState])
}

fn enqueuer(rights: &mut Rights) -> &mut Rights {
    for priority in Priority::ALL {
        rights.drain(stream::REQUESTS, &jetstream::request_consumer(priority));
    }
    for read in [stream::LEASES, stream::MODELS, stream::QUOTA, stream::ENVIRONMENTS, stream::EXECUTORS] {
        rights.read(read);
    }
    rights
        .take_part()
        .follow(stream::EVENTS)
        .serve(&[EachOf::Api])
        .send_to(&[EachOf::Control, EachOf::Archive]);
    // Orders to cancel revoke the lease of a worker that does not answer.
    rights.write(&[WrittenSubjects::Lifecycles, WrittenSubjects::Rejected, WrittenSubjects::Leases]);
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
    rights.read(stream::SCALE).read(stream::EXECUTORS).write(&[WrittenSubjects::Scale])
}

fn reaper(rights: &mut Rights) -> &mut Rights {
    rights.take_part().read(stream::EVENTS).read(stream::LEASES).hear_advisories();
    rights.drain(stream::LEASES, jetstream::LEASE_CONSUMER).send_to(&[EachOf::Control]);
    rights.write(&[WrittenSubjects::Lifecycles, WrittenSubjects::Leases])
}

fn archive(rights: &mut Rights) -> &mut Rights {
    rights.take_part().follow(stream::EVENTS).follow(stream::ACTIONS).follow(stream::BAZEL);
    store(rights.serve(&[EachOf::Archive]).write(&[WrittenSubjects::ArchivedBlobs]))
}

fn scheduler(rights: &mut Rights) -> &mut Rights {
    rights.take_part().follow(stream::ACTIONS).read(stream::EXECUTORS);
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
    ] {
        rights.read(read);
    }
    rights.send_to(&[EachOf::Api, EachOf::Archive, EachOf::Control]);
    rights.send_to(&[EachOf::ExecutorControl, EachOf::ExecutorOutput]);
    rights.write(&[WrittenSubjects::Quotas, WrittenSubjects::Environments]);
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
    store(rights.write(&[WrittenSubjects::Environments, WrittenSubjects::EarlierStore]))
}

fn worker<'a>(rights: &'a mut Rights, id: &WorkerId) -> &'a mut Rights {
    rights.take_part().read(stream::EVENTS).read(stream::LEASES).read(stream::ENVIRONMENTS).answer();
    rights.receive(&[
        Subject::Offer(id.clone()),
        Subject::Control(id.clone()),
        Subject::ActionUsage(id.clone()),
    ]);
    rights.receive(&[Subject::Announce, Subject::GatewayChanged, Subject::PoolChanged]);
    rights.send(&[Subject::Heartbeat, Subject::Usage]);
    store(rights.write(&[
        WrittenSubjects::Lifecycles,
        WrittenSubjects::RunEvents,
        WrittenSubjects::BazelBlobs,
        WrittenSubjects::Leases,
        WrittenSubjects::WorkerProperties,
    ]))
}

fn executor<'a>(rights: &'a mut Rights, id: &ExecutorId) -> &'a mut Rights {
    rights.take_part().read(stream::ACTIONS).read(stream::EXECUTORS).read(stream::ENVIRONMENTS).answer();
    rights.receive(&[
        Subject::ExecutorGrant(id.clone()),
        Subject::ExecutorControl(id.clone()),
        Subject::ExecutorOutput(id.clone()),
        Subject::ExecutorAnnounce,
    ]);
    rights.hear(&[LiveSubjects::Environments]).send_to(&[EachOf::ActionUsage]).report_progress();
    rights.send(&[
        Subject::ExecutorHeartbeat,
        Subject::ExecutorRoom,
        Subject::ExecutorHandOver,
        Subject::Usage,
        Subject::PoolChanged,
    ]);
    let lease = WrittenSubjects::ExecutorLease(id.clone());
    store(rights.write(&[WrittenSubjects::Executions, lease, WrittenSubjects::Pools]))
}

fn operator(rights: &mut Rights) -> &mut Rights {
    pages(rights).read(stream::LEASES).read(stream::REJECTED);
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
