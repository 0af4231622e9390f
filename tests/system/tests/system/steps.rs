//! SIGKILL at every step between two effects: the build ends once, in bounded time, and no two attempts overlap.

use std::time::Duration;

use bus::{Acquired, LeaseHolder, Written};
use farm::{Effects, Farm, SOON, ServiceProcess};
use model::{BuildKey, BuildRequest, Invocation, InvocationId, Millis, Outcome, Priority, Sequence, State};
use service::Step;
use tokio::task::JoinHandle;

use crate::{
    check::{ended_within, request},
    scenario::{Scenario, scenario, walk},
};

/// A missing acknowledgement is noticed after 10 s; then a lease of 2 s and a run.
const BOUND: Duration = Duration::from_secs(20);

/// An event that leads a service to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// A request is published.
    Publish,
    /// An invalid request is published.
    PublishBad,
    /// A build is created by the API.
    Create,
    /// A running build is cancelled.
    Cancel,
    /// Redis loses all its data.
    Flush,
    /// The worker of a running build dies.
    WorkerDies,
    /// The worker dies, and no service receives the expiry of its lease.
    LeaseVanishes,
    /// A build exceeds its queue timeout.
    QueueTimeout,
    /// A worker runs a build for too long.
    Overrun,
}

impl Way {
    fn outcome(self) -> Outcome {
        match self {
            Self::Publish | Self::Create | Self::Flush | Self::WorkerDies | Self::LeaseVanishes => {
                Outcome::Succeeded
            }
            Self::PublishBad => Outcome::Rejected,
            Self::Cancel => Outcome::Cancelled,
            Self::QueueTimeout => Outcome::Expired,
            Self::Overrun => Outcome::TimedOut,
        }
    }
}

/// A build on its way to a step, and the concurrent call.
struct Provoked {
    key: BuildKey,
    meanwhile: Option<JoinHandle<()>>,
}

struct Drive {
    farm: Farm,
    effects: Effects,
    way: Way,
}

async fn kill_at(step: Step) {
    let Scenario::Build(way) = scenario(step) else { panic!("{} is not a step of a build", step.name()) };
    let mut builder = Farm::builder().without("gateway").without(step.service());
    if matches!(way, Way::QueueTimeout | Way::Overrun) {
        builder = builder.without("worker");
    }
    let farm = builder.start().await;
    if way == Way::Flush {
        // The index already exists: it is lost, not missing.
        drop(farm.spawn("dispatcher").await);
    }
    let mut victim = farm.start_unready(step.service(), &[("FOREBAY_CRASH_AT", step.name())]);
    let drive = Drive { effects: farm.effects(), farm, way };
    let provoked = drive.provoke(&mut victim).await;
    let status = victim.wait_exit(BOUND).await;
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(9), "{status} at {}\n{}", step.name(), victim.log_tail());
    assert!(victim.log_text().contains("step selected by FOREBAY_CRASH_AT"), "{}", victim.log_tail());
    drive.farm.keep(drive.farm.spawn(step.service()).await);

    let record = ended_within(&drive.farm, &provoked.key, BOUND).await;
    assert_eq!(record.result().unwrap().outcome, way.outcome(), "{record:#?}");
    if let Some(meanwhile) = provoked.meanwhile {
        tokio::time::timeout(SOON, meanwhile).await.unwrap().unwrap();
    }
    drive.effects.assert_sound();
    drive.assert_effects(&provoked.key, record.attempt.0);
    assert_eq!(drive.farm.history(&provoked.key).await.last().unwrap().1, record);
}

impl Drive {
    /// Creates a request. The first attempt of a build that is to be lost does not end on its own.
    fn request(&self) -> BuildRequest {
        let body = match self.way {
            Way::Publish | Way::PublishBad | Way::Create | Way::Flush | Way::QueueTimeout | Way::Overrun => {
                "echo out; echo kept > file.txt; sleep 1"
            }
            Way::WorkerDies | Way::LeaseVanishes => r#"[ "$FOREBAY_ATTEMPT" != 1 ] || sleep 1000"#,
            Way::Cancel => "sleep 1000",
        };
        BuildRequest { outputs: vec!["*.txt".into()], ..request(&self.effects.command(body)) }
    }

    async fn create(&self) -> BuildKey {
        self.farm.submit("g", self.request()).await
    }

    async fn started(&self, key: &BuildKey) -> (Sequence, model::BuildRecord) {
        self.farm.wait_until(key, SOON, |record| record.state() == State::InProgress).await
    }

    async fn provoke(&self, victim: &mut ServiceProcess) -> Provoked {
        let done = |key| Provoked { key, meanwhile: None };
        match self.way {
            Way::Publish => done(self.farm.publish("g", Priority::Interactive, &self.request()).await),
            Way::PublishBad => {
                let request = BuildRequest { command: Vec::new(), ..self.request() };
                done(self.farm.publish("g", Priority::Interactive, &request).await)
            }
            Way::Create => self.create_meanwhile(victim).await,
            Way::Cancel => self.cancel(victim).await,
            Way::Flush => {
                victim.ready(SOON).await;
                let key = self.create().await;
                self.farm.servers.flush_redis();
                done(key)
            }
            Way::WorkerDies | Way::LeaseVanishes => done(self.lose_worker(victim).await),
            Way::QueueTimeout => {
                let request = BuildRequest { queue_timeout_seconds: Some(1), ..self.request() };
                done(self.farm.submit("g", request).await)
            }
            Way::Overrun => self.overrun().await,
        }
    }

    /// Creates a build; the call may lose its answer and is repeated until it receives one.
    async fn create_meanwhile(&self, victim: &mut ServiceProcess) -> Provoked {
        victim.ready(SOON).await;
        let (client, request) = (self.farm.client().clone(), self.request());
        let key = BuildKey { group: "g".parse().unwrap(), id: request.id.unwrap() };
        let group = key.group.clone();
        let create = async move {
            let reply = client.create(&group, &request, None).await.unwrap();
            assert_eq!(Some(reply.id), request.id);
        };
        Provoked { key, meanwhile: Some(tokio::spawn(create)) }
    }

    async fn cancel(&self, victim: &mut ServiceProcess) -> Provoked {
        victim.ready(SOON).await;
        let key = self.create().await;
        self.started(&key).await;
        let (client, build) = (self.farm.client().clone(), key.clone());
        let cancel = async move {
            let reply = client.cancel(&build, Some("test".into())).await.unwrap();
            assert_eq!(reply.build.state, State::Finished);
            let gone = || crate::check::processes_of(build.id).is_empty();
            crate::check::until("the processes are dead", Duration::from_secs(3), gone).await;
        };
        Provoked { key, meanwhile: Some(tokio::spawn(cancel)) }
    }

    async fn lose_worker(&self, victim: &mut ServiceProcess) -> BuildKey {
        let key = self.create().await;
        self.started(&key).await;
        victim.ready(SOON).await;
        let mut worker = self.farm.take("worker");
        worker.kill9();
        worker.wait_exit(SOON).await;
        if self.way == Way::LeaseVanishes {
            self.farm.bus().leases().revoke(&key).await.unwrap();
        }
        self.farm.keep(self.farm.spawn("worker").await);
        key
    }

    /// Acts as a worker that renews its lease forever and never ends its run.
    async fn overrun(&self) -> Provoked {
        let request = BuildRequest { timeout_seconds: Some(1), ..self.request() };
        let key = self.farm.submit("g", request).await;
        let bus = self.farm.bus().clone();
        let worker: model::WorkerId = "nobody".parse().unwrap();
        let holder = LeaseHolder { worker: worker.clone(), ttl_seconds: 60, stored_at_ms: None };
        let Acquired::Held(lease) = bus.leases().acquire(&key, holder, SOON).await.unwrap() else {
            panic!("the lease is taken")
        };
        let (sequence, record) = bus.records().latest(&key).await.unwrap().unwrap();
        let invocation = Invocation {
            id: Some(InvocationId::generate()),
            worker,
            workspace: 0,
            lease_revision: lease.revision.0,
            started_at_ms: Millis::of_this_machine(),
            dispatched_at_us: 1,
            dispatched_at_sequence: sequence,
            workspace_kind: None,
        };
        let written = bus.transition(&record.started(invocation, sequence), sequence, SOON).await.unwrap();
        assert!(matches!(written, Written::Won(_)));
        Provoked { key, meanwhile: None }
    }

    /// Asserts that the last attempt ran completely; a build that was not to run had no effect.
    fn assert_effects(&self, key: &BuildKey, attempt: u32) {
        let effects = self.effects.of(key.id);
        let count = |what: &str| {
            effects.iter().filter(|effect| effect.what == what && effect.attempt == attempt).count()
        };
        let wanted = match self.way.outcome() {
            Outcome::Succeeded => (1, 1),
            Outcome::Cancelled => (count("start"), 0),
            Outcome::Rejected | Outcome::Expired | Outcome::TimedOut => (0, 0),
            Outcome::Failed | Outcome::Lost => panic!("no step ends like this"),
        };
        assert_eq!((count("start"), count("end")), wanted, "{effects:?}");
    }
}

walk! {
    killed_with_a_request_pulled = RequestPulled,
    killed_with_enqueued_written = EnqueuedWritten,
    killed_with_a_rejection_published = RejectionPublished,
    killed_with_a_created_build_written = CreateWritten,
    killed_with_a_cancellation_written = CancelWritten,
    killed_with_a_cancelled_lease_revoked = CancelRevoked,
    killed_with_events_read = EventsRead,
    killed_with_events_applied = EventsApplied,
    killed_with_a_rebuild_begun = RebuildBegun,
    killed_with_builds_picked = Picked,
    killed_with_picks_committed = Committed,
    killed_with_offers_answered = Offered,
    killed_with_an_offer_received = OfferReceived,
    killed_with_the_lease_held = LeaseHeld,
    killed_with_the_start_written = StartWritten,
    killed_with_the_workspace_prepared = WorkspacePrepared,
    killed_with_the_command_spawned = CommandSpawned,
    killed_with_a_chunk_written = ChunkWritten,
    killed_with_the_lease_renewed = LeaseRenewed,
    killed_with_the_command_ended = CommandEnded,
    killed_with_the_outputs_kept = OutputsKept,
    killed_with_the_finish_written = FinishWritten,
    killed_with_the_lease_released = LeaseReleased,
    killed_with_an_expiry_heard = ExpiryHeard,
    killed_with_the_verdict_written = VerdictWritten,
    killed_with_an_orphan_found = OrphanFound,
    killed_with_an_overdue_build_found = OverdueFound,
    killed_with_an_overdue_build_ended = OverdueWritten,
}

#[tokio::test]
async fn a_queued_build_cancelled_by_a_dying_enqueuer_ends_once() {
    let farm = Farm::builder().without("gateway").without("enqueuer").without("worker").start().await;
    let mut victim =
        farm.spawn_with_env("enqueuer", &[("FOREBAY_CRASH_AT", Step::CancelWritten.name())]).await;
    let effects = farm.effects();
    let key = farm.submit("g", request(&effects.command("true"))).await;
    let (client, build) = (farm.client().clone(), key.clone());
    let cancel = tokio::spawn(async move { client.cancel(&build, None).await.unwrap() });
    victim.wait_exit(SOON).await;
    farm.keep(farm.spawn("enqueuer").await);
    farm.keep(farm.spawn("worker").await);
    let record = ended_within(&farm, &key, BOUND).await;
    assert_eq!(record.result().unwrap().outcome, Outcome::Cancelled);
    assert_eq!(cancel.await.unwrap().build.record, record);
    // A build behind it runs, so the cancelled one was skipped.
    let next = farm.submit("g", request(&effects.command("true"))).await;
    assert_eq!(ended_within(&farm, &next, BOUND).await.result().unwrap().outcome, Outcome::Succeeded);
    let ran: Vec<String> = effects.all().into_iter().map(|effect| effect.build).collect();
    assert_eq!(ran, [next.id.to_string(), next.id.to_string()]);
}
