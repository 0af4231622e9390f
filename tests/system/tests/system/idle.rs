//! An idle farm uses almost no processor time.

use std::{collections::BTreeMap, fs, time::Duration};

use farm::{Servers, Up};

/// Maps processes to their parents.
fn parents() -> BTreeMap<u32, u32> {
    let ids = fs::read_dir("/proc").unwrap().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|pid| Some((pid, stat(pid)?.get(1)?.parse().ok()?))).collect()
}

/// Returns the fields of a process's `stat` after its name: state, parent, ...
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_ascii_whitespace().map(str::to_owned).collect())
}

/// Returns CPU ticks, user and system, of every process of our program below `root`.
fn ticks(root: u32) -> BTreeMap<u32, u64> {
    let parents = parents();
    let below = |pid: u32| {
        let chain =
            std::iter::successors(Some(pid), |pid| parents.get(pid).copied().filter(|parent| *parent > 1));
        chain.take(20).any(|ancestor| ancestor == root)
    };
    let ours =
        |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("forebay"));
    let used = |pid: u32| {
        let fields = stat(pid)?;
        let tick = |number: usize| fields.get(number)?.parse::<u64>().ok();
        Some((pid, tick(11)? + tick(12)?))
    };
    parents.keys().copied().filter(|pid| below(*pid) && ours(pid)).filter_map(used).collect()
}

/// A number in the state of nats-server.
pub(crate) async fn varz(servers: &Servers, name: &str) -> u64 {
    let url = format!("http://{}/varz", servers.monitor_address(0));
    let text = crate::http::client().get(url).send().await.unwrap().text().await.unwrap();
    let varz: serde_json::Value = serde_json::from_str(&text).unwrap();
    varz.get(name).and_then(serde_json::Value::as_u64).unwrap()
}

async fn messages(servers: &Servers) -> u64 {
    varz(servers, "in_msgs").await + varz(servers, "out_msgs").await
}

/// Waits until the work of the start is done: no process uses a tick for half a second.
async fn quiet(root: u32) {
    let mut last = ticks(root);
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = ticks(root);
        if std::mem::replace(&mut last, now.clone()) == now {
            return;
        }
    }
    panic!("the farm is never quiet: {last:?}");
}

#[tokio::test]
async fn an_idle_farm_uses_about_nothing_and_is_quiet() {
    let long = std::env::var_os("FOREBAY_LONG").is_some();
    let span = Duration::from_secs(if long { 60 } else { 10 });
    let servers = Servers::start().await;
    let url = servers.nats_url();
    let mut up = Up::start(servers.folder(), servers.guard(), &[], &[("FOREBAY_NATS_URL", &url)]).await;
    // One build, so that every service has worked once.
    assert_eq!(up.cli(&["submit", "--follow", "--", "true"]).await.code, 0);
    let root = up.process().pid();
    quiet(root).await;
    let (before, sent_before) = (ticks(root), messages(&servers).await);
    assert!(before.len() >= 6, "{before:?}");
    tokio::time::sleep(span).await;
    let (after, sent) = (ticks(root), messages(&servers).await - sent_before);
    let used: u64 = after.iter().map(|(pid, ticks)| ticks - before.get(pid).unwrap_or(&0)).sum();
    // A tick is a hundredth of a second. An unoptimised program needs twice the time, and tests that run meanwhile slow
    // it down.
    let share = used as f64 / 100.0 / span.as_secs_f64();
    let most = if cfg!(debug_assertions) { 0.02 } else { 0.01 };
    let rate = sent as f64 / span.as_secs_f64();
    println!("idle: {:.2} % of a core, {rate:.1} messages a second", share * 100.0);
    assert!(share < most, "{:.2} % of a core: {before:?} {after:?}", share * 100.0);
    assert!(rate < 20.0, "{rate} messages a second");
}
