//! Checks of NATS, Redis, the store and the services.

use std::time::Duration;

use bus::{Bus, BusError, EventSubject, Patience, stream};
use client::Client;
use command_line::globals::Globals;
use index::Index;
use invariant::Present as _;
use jetstream::Topology;
use model::{Sequence, WorkerStatus, WorkspaceState};
use settings::Settings;
use telemetry::error_chain;

use super::{
    Finding, address_checks, archive_checks, clock_checks, disk_checks, executor_checks, quota_checks,
    security_checks, store_checks,
};

const START_NATS: &str = "start nats-server (`forebay up` does), or set its URL with --nats";
const MEND_KEY: &str = "set seed_file and servers_ca_file to files that exist and that only you can read";
const NOT_ADMITTED: &str =
    "the key was revoked, or is that of another farm: ask an operator for one (`forebay access grant`)";
const START_REDIS: &str = "start redis-server (`forebay up` does), or set its URL with --redis";
const START_SERVICES: &str = "start the services: forebay serve enqueuer dispatcher governor worker reaper";

/// Checks NATS, Redis, and through NATS everything else.
pub(super) async fn run(globals: &Globals, settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    let bus = match connect(globals, settings).await {
        Ok(bus) => Some(bus),
        Err(finding) => {
            findings.push(finding);
            None
        }
    };
    if let Some(bus) = &bus {
        findings.push(server(bus));
        findings.push(topology(bus, settings).await);
        findings.extend(disk_checks::run(bus, settings).await);
    }
    findings.extend(redis(globals, settings, bus.as_ref()).await);
    // Without servers, another check reports why.
    if let (Ok(nats), Ok(redis)) = (globals.nats_server(settings), globals.redis_server(settings)) {
        findings.extend(security_checks::run(bus.as_ref(), &nats, &redis, settings).await);
    }
    if let Some(bus) = bus {
        findings.extend(store_checks::run(&bus, settings).await);
        findings.extend(address_checks::run(&bus).await);
        let client = Client::new(bus);
        findings.push(enqueuer(&client).await);
        findings.push(workers(&client).await);
        findings.push(executor_checks::run(&client).await);
        findings.push(archive_checks::run(&client).await);
        findings.push(clock_checks::run(&client).await);
        findings.extend(quota_checks::run(&client, settings).await);
    }
    findings
}

async fn connect(globals: &Globals, settings: &Settings) -> Result<Bus, Finding> {
    let failed = |found: String| Finding::unreachable("nats", found, START_NATS);
    let server = globals.nats_server(settings).map_err(|failure| failed(failure.line().to_owned()))?;
    Bus::connect(&server, "forebay doctor", Patience::None).await.map_err(|error| {
        let found = error_chain(&error);
        if matches!(error, BusError::Credentials(_)) {
            Finding::fail("nats", found, MEND_KEY)
        } else if found.contains("authorization violation") {
            Finding::fail("nats", found, NOT_ADMITTED)
        } else {
            failed(found)
        }
    })
}

/// Minimum version of nats-server: the first with per-message TTLs, markers and scheduled messages.
const VERSION_MIN: (u64, u64, u64) = (2, 12, 0);
/// The first version in which accounts cannot reach each other's streams (CVE-2026-33222, CVE-2026-33248).
const VERSION_SAFE: (u64, u64, u64) = (2, 12, 6);

fn server(bus: &Bus) -> Finding {
    let info = bus.server();
    let found = format!("nats-server {} at {}", info.version, bus.url());
    if version(&info.version).is_none_or(|version| version < VERSION_MIN) {
        return Finding::fail(
            "nats",
            found,
            format!("upgrade to version {}.{} or later", VERSION_MIN.0, VERSION_MIN.1),
        );
    }
    if version(&info.version).is_some_and(|version| version < VERSION_SAFE) {
        let (major, minor, patch) = VERSION_SAFE;
        let found = format!("{found} has faults by which one account reaches streams of others");
        return Finding::warn("nats", found, format!("upgrade to version {major}.{minor}.{patch} or later"));
    }
    if !info.has_jetstream {
        return Finding::fail(
            "nats",
            format!("{found} without JetStream"),
            "start it with -js and a store_dir",
        );
    }
    Finding::ok("nats", found)
}

/// Major, minor and patch level; text after a number, as of a release candidate, is ignored.
fn version(text: &str) -> Option<(u64, u64, u64)> {
    let number = |part: &str| part.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    let mut parts = text.split('.');
    Some((number(parts.next()?)?, number(parts.next()?)?, parts.next().and_then(number).unwrap_or(0)))
}

async fn topology(bus: &Bus, settings: &Settings) -> Finding {
    let topology = Topology::new(&settings.topology());
    match jetstream::check(bus, &topology).await {
        Ok(differences) if differences.is_empty() => {
            let count = (topology.streams.len(), topology.consumers.len());
            Finding::ok(
                "topology",
                format!("{} streams and buckets, {} consumers, as expected", count.0, count.1),
            )
        }
        Ok(differences) if differences.iter().any(|difference| difference.field == "existence") => {
            let found = format!("{} streams or consumers are missing or differ", differences.len());
            Finding::fail(
                "topology",
                found,
                "they are created when any service starts; see forebay topology --check",
            )
        }
        Ok(differences) => {
            let found = differences.first().map(ToString::to_string).present("the first of some differences");
            let found = format!("{} differences; first: {found}", differences.len());
            Finding::warn(
                "topology",
                found,
                "change the settings or the server; see forebay topology --check",
            )
        }
        Err(error) => Finding::fail("topology", error_chain(&error), "see the log of nats-server"),
    }
}

async fn redis(globals: &Globals, settings: &Settings, bus: Option<&Bus>) -> Vec<Finding> {
    let server = match globals.redis_server(settings) {
        Ok(server) => server,
        Err(failure) => return vec![Finding::unreachable("redis", failure.line(), START_REDIS)],
    };
    let index = match Index::connect(&server, false).await {
        Ok(index) => index,
        Err(error) => return vec![Finding::unreachable("redis", error_chain(&error), START_REDIS)],
    };
    let reached = Finding::ok("redis", format!("reachable at {}", server.shown()));
    match bus {
        Some(bus) => vec![reached, index_state(&index, bus).await],
        None => vec![reached],
    }
}

async fn index_state(index: &Index, bus: &Bus) -> Finding {
    const REBUILD: &str = "a dispatcher rebuilds it: forebay serve dispatcher";
    let health = match index.health().await {
        Ok(Some(health)) => health,
        Ok(None) => return Finding::fail("index", "not built yet", REBUILD),
        Err(error) => return Finding::fail("index", error_chain(&error), "see the log of redis-server"),
    };
    if !health.ready {
        return Finding::fail("index", "being rebuilt", REBUILD);
    }
    let next = Sequence(health.watermark.0 + 1);
    match bus.stream(stream::EVENTS).read_from(EventSubject::LIFECYCLES, next, 100).await {
        Ok(tail) if tail.events.is_empty() => {
            Finding::ok("index", format!("up to date at event {}", health.watermark))
        }
        Ok(tail) => {
            let mark = if tail.more { "more than " } else { "" };
            let found = format!("{mark}{} events behind, at {}", tail.events.len(), health.watermark);
            Finding::warn(
                "index",
                found,
                "if this persists, no dispatcher is running: forebay serve dispatcher",
            )
        }
        Err(error) => Finding::fail("index", error_chain(&error), "see the log of nats-server"),
    }
}

const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);

async fn enqueuer(client: &Client) -> Finding {
    match tokio::time::timeout(ANSWER_TIMEOUT, client.groups()).await {
        Ok(Ok(groups)) => {
            Finding::ok("enqueuer", format!("reachable; {} groups with recent builds", groups.len()))
        }
        Ok(Err(error)) => Finding::unreachable("enqueuer", error_chain(&error), START_SERVICES),
        Err(_) => Finding::unreachable("enqueuer", "no answer in time", "see its log"),
    }
}

async fn workers(client: &Client) -> Finding {
    let workers = match tokio::time::timeout(ANSWER_TIMEOUT, client.workers()).await {
        Ok(Ok(workers)) => workers,
        Ok(Err(error)) => return Finding::unreachable("workers", error_chain(&error), START_SERVICES),
        Err(_) => return Finding::unreachable("workers", "no answer in time", START_SERVICES),
    };
    let ready: Vec<_> = workers
        .iter()
        .map(|view| &view.heartbeat)
        .filter(|beat| beat.status == WorkerStatus::Ready)
        .collect();
    let spaces: Vec<_> = ready.iter().flat_map(|beat| &beat.workspaces).collect();
    let idle = spaces.iter().filter(|space| matches!(space, WorkspaceState::Idle { .. })).count();
    let found = format!(
        "{} live, {} ready; {idle} of {} workspaces idle at the last heartbeat",
        workers.len(),
        ready.len(),
        spaces.len()
    );
    if let Some(short) = workers.iter().find_map(|view| view.heartbeat.short.as_ref()) {
        let judged = if ready.is_empty() { Finding::fail } else { Finding::warn };
        return judged(
            "workers",
            format!("{found}; one accepts no builds: {short}"),
            "remove that cause on its machine; see its log".to_owned(),
        );
    }
    match (workers.is_empty(), ready.is_empty()) {
        (true, _) => Finding::unreachable("workers", "no live worker", "start one: forebay serve worker"),
        (false, true) => Finding::warn("workers", found, "start another, or forebay drain --undo WORKER"),
        (false, false) => Finding::ok("workers", found),
    }
}

#[cfg(test)]
mod tests {
    use super::{VERSION_MIN, VERSION_SAFE, version};

    #[test]
    fn versions_are_compared_by_number() {
        assert!(version("2.9.25").unwrap() < VERSION_MIN);
        assert!(version("2.12.0-RC.1").unwrap() >= VERSION_MIN);
        assert!(version("2.12.10").unwrap() > VERSION_SAFE && version("2.12.5").unwrap() < VERSION_SAFE);
        assert_eq!(version(""), None);
    }
}
