//! Jobs with large graphs.

use std::time::Instant;

use model::{Job, JobSource, Outcome, StoredJob};
use serde_json::{Value, json};

use super::{builder, ended, request, start};

/// Creates layers of commands; each reads three outputs of the previous layer. Around them are as many steps
/// that need no executor.
fn layers(layers: usize, width: usize) -> Vec<Value> {
    let mut tasks = Vec::new();
    for layer in 0..layers {
        for at in 0..width {
            let out = format!("out/{layer}/{at}");
            let back = |by: usize| format!("out/{}/{}", layer - 1, (at + by) % width);
            let inputs: Vec<String> = if layer == 0 { Vec::new() } else { (0..3).map(back).collect() };
            let command = ["/bin/sh", "-c", "echo $0 > $0", out.as_str()];
            tasks.push(json!({"id": out, "command": command, "inputs": inputs, "outputs": [out]}));
            tasks.push(json!({"id": format!("copy/{layer}/{at}"), "copy": {"from": out, "to": format!("copies/{layer}/{at}")}}));
        }
    }
    tasks.push(json!({"id": "all", "command": ["/bin/sh", "-c", "find copies -type f | wc -l > count"],
        "inputs": ["copies/**"], "outputs": ["count"],
        "dependencies": tasks.iter().map(|task| task["id"].clone()).collect::<Vec<_>>()}));
    tasks
}

#[tokio::test]
async fn a_large_graph_is_run_and_what_is_cached_is_quick() {
    let long = std::env::var_os("FOREBAY_LONG").is_some();
    let (rows, width) = if long { (50, 500) } else { (8, 40) };
    let count = 2 * rows * width + 1;
    let farm =
        start(builder().env("FOREBAY_EXECUTOR_SLOTS", "8").env("FOREBAY_LEASE_TTL_SECONDS", "10")).await;
    let job: Job = super::job(&layers(rows, width).into());
    let json = serde_json::to_vec(&job).unwrap();
    let digest = super::stored(&farm, json).await;
    let mut cached = 0;
    for run in ["first", "second"] {
        let mut request = request(job.clone());
        request.job = Some(JobSource::Stored(StoredJob { digest: digest.clone(), size_bytes: None }));
        request.outputs = vec!["count".into()];
        request.timeout_seconds = Some(1800);
        let began = Instant::now();
        let key = farm.submit("g", request).await;
        let ended = if long {
            let record = farm.wait_finished(&key, std::time::Duration::from_secs(1800)).await;
            let reports = super::reports(&farm, &record).await;
            super::Ended { record, reports }
        } else {
            ended(&farm, &key).await
        };
        let (whole, graph) = (began.elapsed(), ended.record.result().unwrap().wall_seconds);
        println!(
            "{run}: {count} tasks in {whole:?}, the graph {graph:.1} s: {:.0} tasks/s",
            count as f64 / graph
        );
        assert_eq!(ended.outcome(), Outcome::Succeeded, "{:#?}", ended.job());
        assert_eq!((ended.job().succeeded, ended.reports.len()), (count as u64, count));
        let outputs = ended.outputs(&farm).await;
        assert_eq!(String::from_utf8_lossy(&outputs["count"]).trim(), (rows * width).to_string());
        cached = ended.job().cached;
    }
    assert_eq!(cached, (rows * width + 1) as u64, "all commands");
}
