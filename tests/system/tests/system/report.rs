//! What a farm says of its builds and calls by `forebay report`.

use std::fs;

use farm::{Farm, Guard, Port, Process, SOON, tool};
use model::{Outcome, Priority};
use tokio::process::Command;

use crate::{archive::start, check::ended_as};

/// A Prometheus that reads the metrics of a farm. Killed when dropped.
struct Prometheus {
    port: Port,
    _process: Process,
}

impl Prometheus {
    fn start(farm: &Farm, guard: &Guard) -> Self {
        let folder = farm.folder().join("prometheus");
        fs::create_dir(&folder).unwrap();
        let urls = farm.metrics_urls().into_values();
        let addresses: Vec<String> = urls
            .map(|url| url.trim_start_matches("http://").trim_end_matches("/metrics").to_owned())
            .collect();
        let config = serde_json::json!({
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "forebay", "static_configs": [{"targets": addresses}]}],
        });
        fs::write(folder.join("prometheus.yml"), config.to_string()).unwrap();
        let port = Port::reserve();
        let mut command = Command::new(tool("prometheus"));
        command
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{}", port.number()));
        let process = Process::start("prometheus", command, &folder.join("log"), guard);
        Self { port, _process: process }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number())
    }
}

#[tokio::test]
async fn a_report_has_builds_by_priority_and_calls_by_endpoint() {
    let farm = Farm::all().await;
    let archive = start(&farm, "archive/report.db").await;
    farm.keep(archive);
    let guard = Guard::start(farm.folder());
    let prometheus = Prometheus::start(&farm, &guard);
    let url = prometheus.url();
    let arguments = ["report", "--since", "5m", "--prometheus", &url, "--json"];
    let began = std::time::Instant::now();
    loop {
        let key = farm.create("core", Priority::Batch, &["sleep", "0.1"]).await;
        ended_as(&farm, &key, Outcome::Succeeded).await;
        let told = farm.cli(&arguments).await;
        let report: serde_json::Value = serde_json::from_str(&told.stdout).unwrap_or_default();
        let call = |name: &str| {
            let calls = report["calls"].as_array()?;
            calls.iter().find(|call| call["endpoint"] == name).cloned()
        };
        let is_known = |call: serde_json::Value| {
            call["per_second_mean"].as_f64() > Some(0.0)
                && call["per_second_max"].as_f64() >= call["per_second_median"].as_f64()
                && call["latency_median_seconds"].as_f64() > Some(0.0)
                && call["availability"].as_f64() == Some(1.0)
        };
        let batch = &report["priorities"][3];
        if batch["execution_ms"].as_f64() >= Some(100.0)
            && batch["share"] == 1.0
            && ["create", "claim", "finish"].into_iter().all(|name| call(name).is_some_and(is_known))
        {
            break;
        }
        assert!(began.elapsed() < 2 * SOON, "{told:?}");
    }
    let shown = farm.cli(&["report", "--since", "5m", "--prometheus", &url]).await;
    assert!(shown.stdout.contains("BATCH") && shown.stdout.contains("AVAILABLE"), "{shown:?}");
    let without = farm.cli(&["report", "--prometheus", "http://127.0.0.1:1"]).await;
    assert_eq!(without.code, 4, "{without:?}");
    assert!(without.stderr.contains("reading metrics from Prometheus at http://127.0.0.1:1"), "{without:?}");
    let other =
        farm.cli(&["report", "--prometheus", &farm.metrics_urls().into_values().next().unwrap()]).await;
    assert!(other.code != 0 && other.stderr.lines().count() == 1, "{other:?}");
}
