//! Runs services that several actions share: an execution that has no command of its own and ends when it is stopped.
//!
//! It holds room like any other action until its services are ready, and none after that: with a room of their own, services
//! could take the only slot of the executor from those that use them.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt as _;
use model::{ExecutionOutcome, ExecutionStage, SharedServices, SharedServicesId};
use policy::actions::CopyEnd;
use reapi::execution::ActionResult;
use service::send_heartbeat;
use trace::CopyTimes;

use crate::{
    execute::stored,
    finish,
    held_actions::Work,
    memory,
    outcome::{Fault, code},
    progress::Progress,
    services::ActionServices,
    shared::Shared,
    shared_services::Offered,
    spec::Spec,
};

/// Interval of the message that the services are ready: one may be lost.
const SAY_AGAIN: Duration = Duration::from_secs(3);

/// Whether an action runs shared services instead of a command.
pub(crate) fn is_for(work: &Work) -> bool {
    work.claimed.record.execution.needs.shared_services == SharedServices::Runs
}

/// Starts the services of an action, and lets others use them until they are stopped.
pub(crate) fn begin(shared: &Arc<Shared>, work: Work, begin_others: Begin) {
    let shared = Arc::clone(shared);
    shared.main.clone().spawn(async move { serve(&shared, work, begin_others).await });
}

/// Begins the actions that start in freed room.
type Begin = fn(&Arc<Shared>, Vec<Work>);

async fn serve(shared: &Arc<Shared>, work: Work, begin: Begin) {
    let key = work.key();
    shared.usage.begin(&key, &work.claimed.size);
    let mut serving = Serving { services: None, has_room: true, times: CopyTimes::default(), begin };
    let end = AssertUnwindSafe(serving.run(shared, &work))
        .catch_unwind()
        .await
        .unwrap_or_else(|_| Some(CopyEnd::Infrastructure { reason: "the executor panicked".to_owned() }));
    let Serving { services, has_room, times, begin } = serving;
    if let Some(services) = services {
        services.end(shared).await;
    }
    let esu = shared.usage.end(&key);
    if has_room {
        begin(shared, shared.actions.leave_slot(&key, &work.handle, &work.claimed.size));
    } else {
        shared.actions.end_serving(&key, &work.handle);
    }
    // Other actions may use the executor that did not because of the services.
    shared.actions.announce.notify_one();
    finish::write_end(shared.clone(), work, (end, times), esu).await;
}

/// An action that runs services, and what it leaves.
struct Serving {
    services: Option<ActionServices>,
    /// Whether it holds its room.
    has_room: bool,
    times: CopyTimes,
    /// Begins the actions that start in its room.
    begin: Begin,
}

impl Serving {
    /// Runs the services; `None` if their end is not wanted.
    async fn run(&mut self, shared: &Arc<Shared>, work: &Work) -> Option<CopyEnd> {
        let key = work.key();
        let progress = Progress::of(shared, &key);
        let end = tokio::select! {
            biased;
            () = work.handle.stop.cancelled() => return None,
            end = self.execute(shared, work, &progress) => end,
            never = progress.report_later() => match never {},
        };
        end.map_or_else(|fault| fault.end(&shared.id), Some)
    }

    async fn execute(
        &mut self,
        shared: &Arc<Shared>,
        work: &Work,
        progress: &Progress<'_>,
    ) -> Result<CopyEnd, Fault> {
        let execution = &work.claimed.record.execution;
        let clock = shared.context.bus.clock();
        self.times.started = Some(clock.system_time());
        progress.enter(ExecutionStage::Fetching).await;
        let spec = Spec::read(&shared.cas, execution, &shared.settings.pool_properties).await?;
        let Some((SharedServices::Runs, id)) = spec.shared_services else {
            return Err(Fault::invalid("the action runs no services for others".to_owned()));
        };
        let place = shared.slot_threads.place_of_services();
        let services = self.services.insert(ActionServices::create(&spec, &place).await?);
        let memory = memory::limit(&work.claimed, shared.settings.action_limits.memory_bytes);
        services.prepare(shared, &spec, &place, (memory, &work.images)).await?;
        self.times.inputs_ready = Some(clock.system_time());
        services.start(shared, execution.action.function).await?;
        let offered = shared.services_here.offer(id, execution.key(), services.network());
        let offered = offered.ok_or_else(|| in_use(id))?;
        self.has_room = false;
        (self.begin)(shared, shared.actions.serve(&work.key(), &work.handle, &work.claimed.size));
        shared.changed.notify_one();
        // First, so that schedulers know of the services before anything that uses them.
        send_heartbeat(&**shared).await;
        // A report of room that overtakes it makes it outdated.
        shared.actions.announce.notify_one();
        let began = clock.system_time();
        let ended = self.until_stopped(shared, work, (&spec, offered), progress).await;
        self.times.command = Some((began, clock.system_time()));
        ended
    }

    /// Returns when the services have stopped, or failed.
    async fn until_stopped(
        &mut self,
        shared: &Shared,
        work: &Work,
        (spec, offered): (&Spec, Offered),
        progress: &Progress<'_>,
    ) -> Result<CopyEnd, Fault> {
        let function = work.claimed.record.execution.action.function;
        let Some(services) = &mut self.services else {
            return Err(Fault::Machine { reason: "the services are gone".to_owned() });
        };
        let ready = async {
            loop {
                progress.enter(ExecutionStage::Running).await;
                tokio::time::sleep(SAY_AGAIN).await;
            }
        };
        let fault = tokio::select! {
            biased;
            () = offered.stop.cancelled() => None,
            fault = services.fault(shared, function) => Some(fault),
            () = shared.actions.until_draining() => {
                Some(Fault::Machine { reason: "the executor is draining".to_owned() })
            }
            () = tokio::time::sleep(spec.timeout) => {
                let seconds = spec.timeout.as_secs_f64();
                let message = format!("the shared services were stopped at their time limit of {seconds} s");
                Some(Fault::new(code::DEADLINE_EXCEEDED, message))
            }
            () = ready => None,
        };
        match fault {
            Some(fault) => {
                if let Fault::Ends { message, .. } = &fault {
                    offered.fail(message);
                }
                return Err(fault);
            }
            None => drop(offered),
        }
        // All that use them have ended: if a service fails now, that harms nothing.
        let stopped = services.stop().await;
        shared.usage.set_memory(&work.key(), stopped.used.peak_memory_bytes);
        let server_logs = services.keep_logs(shared, function).await?;
        let result = stored(&shared.cas, &ActionResult::default()).await?;
        Ok(CopyEnd::Outcome(ExecutionOutcome {
            executor: Some(shared.id.clone()),
            exit_code: Some(0),
            result: Some(result),
            server_logs,
            ..ExecutionOutcome::without_run(0, String::new())
        }))
    }
}

fn in_use(id: SharedServicesId) -> Fault {
    Fault::invalid(format!("there are shared services with the id {id} already"))
}
