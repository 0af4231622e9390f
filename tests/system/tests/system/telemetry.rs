//! Metrics as a scraper reads them.

use farm::Farm;

use crate::check::{ended, script};

#[tokio::test]
async fn every_service_has_metrics_of_what_it_did() {
    let farm = Farm::all().await;
    let key = farm.submit("g", script("echo x")).await;
    ended(&farm, &key).await;
    farm.publish("g", model::Priority::Batch, &model::BuildRequest { command: vec![], ..script("") }).await;
    let http = crate::http::client();
    let mut all = String::new();
    for (service, url) in farm.metrics_urls() {
        let text = http.get(&url).send().await.unwrap().text().await.unwrap();
        assert!(text.ends_with("# EOF\n"), "{service}: {text}");
        let health = http.get(url.replace("/metrics", "/healthz")).send().await.unwrap();
        assert!(health.status().is_success(), "{service}: {}", health.status());
        all += &text;
    }
    assert_eq!(farm.metrics_urls().len(), 5);
    for (name, least) in [
        ("forebay_builds_enqueued_total", 1.0),
        ("forebay_invocations_started_total", 1.0),
        ("forebay_builds_finished_total", 1.0),
        ("forebay_console_bytes_total", 2.0),
        ("forebay_index_applied_total", 3.0),
    ] {
        let values = all.lines().filter(|line| line.starts_with(name));
        let sum: f64 = values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        assert!(sum >= least, "{name} is {sum}");
    }
}
