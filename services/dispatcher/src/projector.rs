//! The projection of lifecycle messages into the index of builds.

use std::sync::Arc;

use bus::{BusError, EventSubject, Stored, stream};
use index::{Applied, Change, Health, Index, IndexError, IndexEvent, RebuildToken};
use model::{BuildRecord, Heartbeat, Sequence};
use projection::{Projection, Steps};
use service::{Context, ServiceError, Step, request_heartbeats};
use settings::DispatcherSettings;
use tokio::sync::Notify;
use tracing::info;

use crate::{
    Wakes,
    records::{self, BuildEvent},
    workers::Workers,
};

/// Maintains the index until the service stops.
pub(crate) async fn run(
    context: Context,
    settings: Arc<DispatcherSettings>,
    index: Index,
    wakes: Wakes,
    workers: Workers,
) -> Result<(), ServiceError> {
    let order = records::order_of_queues(&settings);
    let builds = Builds { context: context.clone(), settings, index, wakes, workers, order };
    projection::run(context, builds).await
}

struct Builds {
    context: Context,
    settings: Arc<DispatcherSettings>,
    index: Index,
    wakes: Wakes,
    workers: Workers,
    /// Names of the orders of the queues.
    order: String,
}

impl Projection for Builds {
    const STREAM: &'static str = stream::EVENTS;
    const SUBJECTS: &'static str = EventSubject::LIFECYCLES;
    const LOG: &'static str = "event stream";
    const INDEX: &'static str = "index";
    const STEPS: Steps =
        Steps { read: Step::EventsRead, applied: Step::EventsApplied, rebuild_begun: Step::RebuildBegun };

    type Record = BuildEvent;
    type Effects = ();

    fn missing(&self) -> &Notify {
        &self.wakes.rebuild
    }

    fn ready(&self) {
        self.wakes.dispatch.notify_one();
    }

    async fn health(&self) -> Result<Option<Health>, IndexError> {
        self.index.health().await
    }

    /// Whether the queues have an order other than the settings' current one: the places of waiting and new builds
    /// could not be compared.
    async fn is_outdated(&self) -> bool {
        // If Redis does not answer, the projector waits for it.
        let Ok(order) = self.index.order().await else { return false };
        if order.is_empty() || order == self.order {
            return false;
        }
        info!(before = order, now = self.order, "changing the order of the queues");
        true
    }

    async fn read(&self, stored: &Stored) -> Result<Self::Record, BusError> {
        let read = records::read(stored, &self.settings)?;
        if let Change::Enqueued { .. } = read.event.change {
            self.context.bus.check_accepted::<BuildRecord>(stored).await?;
        }
        Ok(read)
    }

    fn note(&self, records: &[Self::Record]) {
        self.workers.follow(records);
    }

    async fn apply(
        &self,
        from: Sequence,
        to: Sequence,
        records: &[Self::Record],
    ) -> Result<Applied<()>, IndexError> {
        self.index.apply(from, to, &events(records)).await
    }

    fn applied(&self, _: &[Self::Record], (): ()) -> impl Future<Output = ()> + Send {
        self.ready();
        std::future::ready(())
    }

    async fn begin_rebuild(&self) -> Result<Option<RebuildToken>, IndexError> {
        self.index.begin_rebuild().await
    }

    async fn load(&self, token: &RebuildToken, records: &[Self::Record]) -> Result<Applied<()>, IndexError> {
        self.index.load(token, &events(records)).await
    }

    async fn finish_rebuild(&self, token: &RebuildToken, watermark: Sequence) -> Result<bool, IndexError> {
        self.index.finish_rebuild(token, watermark, &self.order).await
    }

    /// Requests heartbeats, which report what is free: workspaces are not in the stream.
    async fn rebuilt(&self) {
        request_heartbeats::<Heartbeat>(&self.context.bus).await;
    }
}

fn events(records: &[BuildEvent]) -> Vec<&IndexEvent> {
    records.iter().map(|it| &it.event).collect()
}
