//! The page of the simulator: what another policy, or another number of workspaces, would have made of the last
//! days, by the builds that ended in them.

use std::{sync::Arc, time::Duration};

use bus::{EventSubject, Follower, Start, stream};
use http_api::Failure;
use maud::{Markup, html};
use model::{BandOrder, ErrorCode, Group, Millis};
use policy::queue::Levels;
use replay::{
    Estimation, InvalidStream, Lateness, QueueOutcome, RecordedBuild, Recorder, Stream, Ties, alike_workers,
    one_queue, outcome,
};
use tokio::sync::Semaphore;

use crate::{
    chart::{bars, number},
    layout::{one_of, short, span, table},
    site::{Asked, Site},
    view::View,
};

/// Maximum number of builds of a simulation; the last ones are chosen.
const BUILDS_MAX: usize = 20_000;
const BATCH: usize = 1000;
/// Maximum number of simulated workspaces.
const WORKSPACES_MAX: u64 = 1000;
/// One simulation at a time: each uses a processor for seconds.
static RUNNING: Semaphore = Semaphore::const_new(1);
const DAYS: [(&str, &str, u64); 3] = [("1d", "day", 1), ("7d", "7 days", 7), ("30d", "30 days", 30)];

/// Orders of the queue, as the farm can have them: by estimates, if they need run times.
const ORDERS: [(QueueOrder, &str); 6] = [
    (QueueOrder::Band(BandOrder::Fcfs), "First come, first served"),
    (QueueOrder::Band(BandOrder::LeastFlex), "The least flexible first"),
    (QueueOrder::Band(BandOrder::Spt), "The shortest first, by estimates"),
    (QueueOrder::Band(BandOrder::SptAged), "The shortest first, with ageing, by estimates"),
    (QueueOrder::Band(BandOrder::Edf), "The earliest deadline first, by estimates"),
    (QueueOrder::Levels, "Several levels, by estimates"),
];

#[derive(Debug, Clone, Copy)]
enum QueueOrder {
    Band(BandOrder),
    /// The levels of expected run time take turns.
    Levels,
}

impl QueueOrder {
    fn simulate(self, stream: &Stream) -> Result<QueueOutcome, InvalidStream> {
        let (ties, known) = (Ties::ByWorker, Estimation::Imprecise);
        let starts = match self {
            Self::Band(order) => one_queue(stream, ties, order, known),
            Self::Levels => one_queue(stream, ties, Levels::default(), known),
        };
        Ok(outcome(stream, &starts?))
    }
}

/// Handles `GET /simulate`: simulates the last days.
pub(crate) async fn view(site: Site, asked: Asked) -> Result<View, Failure> {
    let query = &asked.query;
    let days = query.last("days").unwrap_or_else(|| "7d".to_owned());
    let chosen = DAYS.into_iter().find(|(name, ..)| *name == days);
    let (.., length) = chosen.ok_or_else(|| Failure::invalid("days: expected 1d, 7d or 30d"))?;
    let (group, workspaces): (Option<Group>, Option<u64>) =
        (query.parsed("group")?, query.number("workspaces")?);
    let now_has = site
        .client()
        .workers()
        .await?
        .iter()
        .map(|it| it.heartbeat.workspaces.len() as u64)
        .sum::<u64>()
        .max(1);
    let form = html! {
        h1 { "Simulate" }
        p { "Takes the builds of the last days as they arrived, with their run times, and shows what another policy or another number of workspaces would have made of them. It does not know quotas, and leaves out builds that have not ended." }
        form.filter method="get" action="/simulate" {
            (one_of("The last", "days", DAYS.into_iter().map(|(name, word, _)| (name, word)), &days))
            label { "Group " input name="group" value=(group.as_ref().map(ToString::to_string).unwrap_or_default()); }
            label { "Workspaces " input name="workspaces" type="number" min="1" max=(WORKSPACES_MAX) value=(workspaces.unwrap_or(now_has)) required; }
            button { "Simulate" }
        }
    };
    let Some(workspaces) = workspaces else { return Ok(View::fixed("Simulate", form)) };
    if !(1..=WORKSPACES_MAX).contains(&workspaces) {
        return Err(Failure::invalid(format!("workspaces: expected 1 to {WORKSPACES_MAX}")));
    }
    let since = Millis(site.now().0.saturating_sub(length * 86_400_000));
    let busy =
        |_| Failure::new(ErrorCode::Unavailable, "another simulation is running: try again in a moment");
    let _permit = RUNNING.try_acquire().map_err(busy)?;
    let builds = record(&site, since, group).await;
    let shown = if builds.is_empty() {
        html! { p { "No build of this time has ended. Choose a longer time, or another group." } }
    } else {
        let builds = Arc::new(builds);
        let found = simulated(builds.clone(), fleets(now_has, workspaces)).await?;
        results(&builds, &found, workspaces)
    };
    Ok(View::fixed("Simulate", html! { (form) (shown) }))
}

/// The numbers of workspaces that are compared.
fn fleets(now_has: u64, asked: u64) -> Vec<u64> {
    if now_has == asked { vec![asked] } else { vec![now_has, asked] }
}

/// The builds that were queued since then and have ended.
async fn record(site: &Site, since: Millis, group: Option<Group>) -> Vec<RecordedBuild> {
    let (mut recorder, now) = (Recorder::new(Some(since), group), site.now());
    let bus = site.client().bus();
    let mut follower = Follower::new(bus, stream::EVENTS, EventSubject::LIFECYCLES, Start::LastOfEachSubject);
    follower.open().await;
    let mut builds = Vec::new();
    while !follower.caught_up() {
        for stored in follower.next(BATCH).await {
            // A time in the future is of a broken clock, and would make all other builds early.
            if let Ok(record) = stored.record()
                && record.build.submitted_at_ms <= now
                && record.queue.enqueued_at_ms <= now
            {
                recorder.take(&record, stored.sequence);
            }
        }
    }
    builds.extend(recorder.rest());
    let surplus = builds.len().saturating_sub(BUILDS_MAX);
    builds.drain(..surplus);
    builds
}

/// What an order on a number of workspaces would have made of the builds.
struct Simulated {
    workspaces: u64,
    outcome: QueueOutcome,
    title: &'static str,
}

async fn simulated(builds: Arc<Vec<RecordedBuild>>, fleets: Vec<u64>) -> Result<Vec<Simulated>, Failure> {
    let failed = |why: String| Failure::new(ErrorCode::Unavailable, format!("the simulation failed: {why}"));
    let run = move || {
        let mut stream = Stream::of_builds("builds", &builds);
        let mut all = Vec::new();
        for workspaces in fleets {
            stream.workers = alike_workers(workspaces, &stream.requirements);
            for (order, title) in ORDERS {
                all.push(Simulated { workspaces, outcome: order.simulate(&stream)?, title });
            }
        }
        Ok::<_, InvalidStream>(all)
    };
    let done = tokio::task::spawn_blocking(run).await.map_err(|error| failed(error.to_string()))?;
    done.map_err(|error| failed(error.to_string()))
}

impl Simulated {
    fn on_time(&self) -> f64 {
        self.outcome.percentage(Lateness::OnTime)
    }

    fn wait_p50(&self) -> f64 {
        self.outcome.relative_wait[0]
    }

    fn wait_p95(&self) -> f64 {
        self.outcome.relative_wait[1]
    }

    fn late(&self) -> f64 {
        self.outcome.percentage(Lateness::Late) + self.outcome.percentage(Lateness::ExtremelyLate)
    }
}

fn results(builds: &[RecordedBuild], found: &[Simulated], asked: u64) -> Markup {
    let mut waits: Vec<u64> = builds.iter().map(|build| build.waited_ms).collect();
    waits.sort_unstable();
    let at = |percent: usize| {
        waits
            .get((waits.len() * percent / 100).min(waits.len().saturating_sub(1)))
            .copied()
            .unwrap_or_default()
    };
    let busy_ms: u64 = builds.iter().map(|build| build.duration_ms).sum();
    let ms = |ms: u64| span(Duration::from_millis(ms));
    let rows = html! {
        @for it in found {
            tr {
                td { (it.title) }
                td.number { (it.workspaces) }
                td.number { (number(it.on_time())) " %" }
                td.number { (number(it.late())) " %" }
                td.number { (number(it.wait_p50())) }
                td.number { (number(it.wait_p95())) }
                td.number { (ms(it.outcome.makespan_ms)) }
                td.number { (number(it.outcome.makespan_ms as f64 * it.workspaces as f64 / 3_600_000.0)) }
            }
        }
    };
    let head = [
        "Policy",
        "Workspaces",
        "On time",
        "Late",
        "Wait, p50",
        "Wait, p95",
        "All ended after",
        "Workspace hours",
    ];
    let of_asked = |value: fn(&Simulated) -> f64| -> Vec<(String, f64)> {
        found.iter().filter(|it| it.workspaces == asked).map(|it| (short(it.title, 60), value(it))).collect()
    };
    html! {
        h2 { "As it was" }
        p {
            (builds.len()) " builds ran for " (ms(busy_ms)) " in all (" (number(busy_ms as f64 / 3_600_000.0)) " workspace hours). Half of them waited at most "
            (ms(at(50))) ", 95 of 100 at most " (ms(at(95))) "."
        }
        h2 { "As it would have been" }
        p { "Waits are multiples of a build's own run time. A build of at most 5 seconds is on time if it waits less than 2 seconds, a longer one if it waits less than 0.4 of its run time; it is late from 15 seconds, or 3 times its run time, on." }
        (table("Policies", &head, &rows))
        (bars(&format!("Builds on time with {asked} workspaces"), "per cent", &of_asked(Simulated::on_time)))
        (bars(&format!("Wait of 95 of 100 builds with {asked} workspaces"), "multiples of their run time", &of_asked(Simulated::wait_p95)))
    }
}
