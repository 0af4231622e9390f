//! Maps each step to the way that leads a service to it, and checks that every step is tested once.

use service::Step;

use crate::{steps, steps_actions};

/// How a service is led to a step.
pub(crate) enum Scenario {
    /// A build leads to the step.
    Build(steps::Way),
    /// An action leads to the step.
    Action(steps_actions::Way),
}

/// Returns the way to a step. The match is exhaustive: a step without a way does not compile.
pub(crate) fn scenario(step: Step) -> Scenario {
    use Scenario::{Action, Build};
    use steps::Way;
    match step {
        Step::RequestPulled | Step::EnqueuedWritten => Build(Way::Publish),
        Step::RejectionPublished => Build(Way::PublishBad),
        Step::CreateWritten
        | Step::EventsRead
        | Step::EventsApplied
        | Step::Picked
        | Step::Committed
        | Step::Offered
        | Step::OfferReceived
        | Step::LeaseHeld
        | Step::StartWritten
        | Step::WorkspacePrepared
        | Step::CommandSpawned
        | Step::ChunkWritten
        | Step::LeaseRenewed
        | Step::CommandEnded
        | Step::OutputsKept
        | Step::FinishWritten
        | Step::LeaseReleased => Build(Way::Create),
        Step::CancelWritten | Step::CancelRevoked => Build(Way::Cancel),
        Step::RebuildBegun => Build(Way::Flush),
        Step::ExpiryHeard | Step::VerdictWritten => Build(Way::WorkerDies),
        Step::OrphanFound => Build(Way::LeaseVanishes),
        Step::OverdueFound => Build(Way::QueueTimeout),
        Step::OverdueWritten => Build(Way::Overrun),
        Step::ActionEventsRead
        | Step::ActionEventsApplied
        | Step::ActionPicked
        | Step::ActionCommitted
        | Step::ActionGrantsSent
        | Step::ActionGrantReceived
        | Step::ActionTaken
        | Step::ActionInputsReady
        | Step::ActionCommandEnded
        | Step::ActionOutputsKept
        | Step::ActionCached
        | Step::ActionResultWritten => Action(steps_actions::Way::Execute),
        Step::ActionRebuildBegun => Action(steps_actions::Way::Flush),
        Step::ExecutorLossHeard | Step::ExecutorLossWritten => Action(steps_actions::Way::ExecutorDies),
        Step::ActionHedgeFound => Action(steps_actions::Way::Hedge),
        Step::ActionOverdueFound | Step::ActionOverdueWritten => Action(steps_actions::Way::QueueTimeout),
    }
}

/// Defines a test for each named step, which calls the function `kill_at` next to it.
macro_rules! walk {
    ($($test:ident = $step:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $test() {
                kill_at(Step::$step).await;
            }
        )*

        /// The steps that are tested here.
        pub(crate) const WALKED: &[Step] = &[$(Step::$step),*];
    };
}
pub(crate) use walk;

#[test]
fn every_step_is_walked_once() {
    let walked: Vec<Step> = steps::WALKED.iter().chain(steps_actions::WALKED).copied().collect();
    let times = |step: &Step| walked.iter().filter(|other| *other == step).count();
    let wrong: Vec<(&str, usize)> =
        Step::ALL.iter().map(|step| (step.name(), times(step))).filter(|(_, count)| *count != 1).collect();
    assert!(wrong.is_empty(), "killed at so many times: {wrong:?}");
}
