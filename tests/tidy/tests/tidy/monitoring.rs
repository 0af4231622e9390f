//! Rules and dashboards read only series that exist, and each alert has a test and a runbook.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, de::DeserializeOwned};
use telemetry::metrics::{Counter, Gauge, Histogram, Label, render};
use tidy::{files, root};

use crate::{
    planned::{Kind, PLANNED, PLANNED_LABELS},
    promql::{Names, names},
};

const RUNBOOKS: &str = "docs/operations.md";
/// Fires always, so that a receiver notices when no alerts are evaluated.
const ALWAYS: &str = "Watchdog";
/// Series of Prometheus and of the exporters of nats-server and Redis. They may have any labels.
const FOREIGN: [&str; 17] = [
    "ALERTS",
    "gnatsd_varz_in_msgs",
    "gnatsd_varz_out_msgs",
    "gnatsd_varz_slow_consumers",
    "jetstream_server_max_storage",
    "jetstream_server_total_message_bytes",
    "redis_aof_last_write_status",
    "redis_commands_processed_total",
    "redis_evicted_keys_total",
    "redis_instance_info",
    "redis_master_link_up",
    "redis_memory_max_bytes",
    "redis_memory_used_bytes",
    "redis_rdb_last_bgsave_status",
    "redis_rejected_connections_total",
    "redis_up",
    "up",
];
/// Labels that Prometheus gives to every series that it reads.
const TARGET_LABELS: [&str; 2] = ["instance", "job"];
const GRID_COLUMNS: u32 = 24;

#[derive(Deserialize)]
struct RuleFile {
    groups: Vec<RuleGroup>,
}

#[derive(Deserialize)]
struct RuleGroup {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    alert: Option<String>,
    record: Option<String>,
    expr: String,
    r#for: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct TestFile {
    tests: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    promql_expr_test: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    expr: String,
    exp_samples: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Dashboard {
    uid: String,
    title: String,
    description: String,
    tags: Vec<String>,
    schema_version: u32,
    panels: Vec<Panel>,
    templating: List<Variable>,
    annotations: List<Annotation>,
}

#[derive(Deserialize)]
struct List<T> {
    list: Vec<T>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    r#type: String,
    #[serde(default)]
    datasource: Option<DataSource>,
    query: serde_json::Value,
}

#[derive(Deserialize)]
struct Annotation {
    datasource: DataSource,
    expr: String,
}

#[derive(Deserialize)]
struct DataSource {
    r#type: String,
    uid: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Panel {
    id: u32,
    r#type: String,
    title: String,
    #[serde(default)]
    description: String,
    datasource: Option<DataSource>,
    grid_pos: Position,
    #[serde(default)]
    field_config: serde_json::Value,
    #[serde(default)]
    targets: Vec<Query>,
    /// Panels of a collapsed row; other rows have none.
    #[serde(default)]
    panels: Vec<serde::de::IgnoredAny>,
}

#[derive(Clone, Copy, Deserialize)]
struct Position {
    x: u32,
    y: u32,
    w: u32,
    h: u32,
}

impl Position {
    fn overlaps(self, other: Self) -> bool {
        self.x < other.x + other.w
            && other.x < self.x + self.w
            && self.y < other.y + other.h
            && other.y < self.y + self.h
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Query {
    ref_id: String,
    expr: String,
    legend_format: Option<String>,
    format: Option<String>,
}

/// The files of a folder, by path.
#[expect(clippy::expect_used, reason = "a test fails by panicking")]
fn read<T: DeserializeOwned>(folder: &str, extension: &str) -> Vec<(String, T)> {
    let found = files(extension).into_iter().filter(|file| file.path.starts_with(folder));
    // JSON is YAML too.
    found.map(|file| (file.path.clone(), serde_norway::from_str(&file.text).expect(&file.path))).collect()
}

fn rules() -> Vec<Rule> {
    let groups =
        read::<RuleFile>("infra/prometheus/rules/", "yml").into_iter().flat_map(|(_, file)| file.groups);
    let rules: Vec<Rule> = groups.flat_map(|group| group.rules).collect();
    assert!(rules.len() > 50, "only {} rules were found", rules.len());
    rules
}

fn dashboards() -> Vec<(String, Dashboard)> {
    let found = read("infra/grafana/", "json");
    assert_eq!(found.len(), 6, "dashboards");
    found
}

/// All expressions, each with the place where it stands.
fn expressions() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for rule in rules() {
        let place = rule.alert.or(rule.record).unwrap_or_default();
        all.push((place, rule.expr));
    }
    for (path, dashboard) in dashboards() {
        for panel in dashboard.panels {
            let place = format!("{path}: {}", panel.title);
            all.extend(panel.targets.into_iter().map(|query| (place.clone(), query.expr)));
        }
        let annotations = dashboard.annotations.list.into_iter();
        all.extend(annotations.map(|it| (format!("{path}: annotations"), it.expr)));
        for variable in dashboard.templating.list {
            let query = variable.query.get("query").and_then(serde_json::Value::as_str).unwrap_or_default();
            if let Some((series, _)) = query.strip_prefix("label_values(").and_then(|it| it.rsplit_once(','))
            {
                all.push((format!("{path}: ${}", variable.name), series.to_owned()));
            }
        }
    }
    all
}

/// The series of the metrics that services have and will have, with their labels.
fn series() -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    let mut add = |name: &str, kind: Kind, labels: &[&str]| {
        let labels: BTreeSet<String> = labels.iter().copied().map(ToOwned::to_owned).collect();
        if kind == Kind::Histogram {
            let with_bound = labels.iter().cloned().chain(["le".to_owned()]).collect();
            all.insert(format!("{name}_bucket"), with_bound);
            all.insert(format!("{name}_sum"), labels.clone());
            all.insert(format!("{name}_count"), labels);
        } else {
            all.insert(name.to_owned(), labels);
        }
    };
    let named = |labels: &[Label]| labels.iter().map(|label| label.name()).collect::<Vec<_>>();
    for it in Counter::ALL {
        add(it.name(), Kind::Counter, &named(it.labels()));
    }
    for it in Gauge::ALL {
        add(it.name(), Kind::Gauge, &named(it.labels()));
    }
    for it in Histogram::ALL {
        add(it.name(), Kind::Histogram, &named(it.labels()));
    }
    for (name, kind, labels) in PLANNED {
        add(name, kind, labels);
    }
    // Every process also describes itself.
    for line in render().lines() {
        let described = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '));
        let Some((name, kind)) = described.filter(|(name, _)| !name.starts_with("forebay_")) else {
            continue;
        };
        add(&format!("{name}{}", if kind == "counter" { "_total" } else { "" }), Kind::Gauge, &[]);
    }
    add("forebay_build_info", Kind::Gauge, &["service", "version"]);
    for (name, label) in PLANNED_LABELS {
        for suffix in ["", "_bucket", "_sum", "_count"] {
            if let Some(labels) = all.get_mut(&format!("{name}{suffix}")) {
                labels.insert(label.to_owned());
            }
        }
    }
    all
}

/// The series that recording rules make.
fn recorded() -> BTreeSet<String> {
    rules().into_iter().filter_map(|rule| rule.record).collect()
}

#[test]
fn expressions_name_series_and_labels_that_exist() {
    let (series, recorded) = (series(), recorded());
    let mut faults = Vec::new();
    for (place, expression) in expressions() {
        let Names { series: used, grouped_by } = names(&expression);
        let mut known: BTreeSet<&str> = TARGET_LABELS.into();
        let mut all_known = true;
        for (name, restricted_by) in &used {
            if FOREIGN.contains(&name.as_str()) || recorded.contains(name) {
                all_known = false;
                continue;
            }
            let Some(labels) = series.get(name) else {
                faults.push(format!("{place}: no metric {name}"));
                continue;
            };
            known.extend(labels.iter().map(String::as_str));
            for label in restricted_by {
                if !labels.contains(label) && !TARGET_LABELS.contains(&label.as_str()) {
                    faults.push(format!("{place}: {name} has no label {label}"));
                }
            }
        }
        for label in grouped_by.iter().filter(|label| all_known && !known.contains(label.as_str())) {
            faults.push(format!("{place}: no series has the label {label}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn planned_metrics_are_missing_and_used() {
    let counters = Counter::ALL.iter().map(|it| (it.name(), it.labels()));
    let gauges = Gauge::ALL.iter().map(|it| (it.name(), it.labels()));
    let histograms = Histogram::ALL.iter().map(|it| (it.name(), it.labels()));
    let existing: BTreeMap<&str, &[Label]> = counters.chain(gauges).chain(histograms).collect();
    let used: BTreeSet<String> = expressions()
        .iter()
        .flat_map(|(_, expression)| names(expression).series)
        .map(|(name, _)| name)
        .collect();
    let mut faults = Vec::new();
    for (name, kind, _) in PLANNED {
        if existing.contains_key(name) {
            faults.push(format!("{name} exists: remove it from the list"));
        }
        let suffixes: &[&str] = if kind == Kind::Histogram { &["_bucket", "_sum", "_count"] } else { &[""] };
        if !suffixes.iter().any(|suffix| used.contains(&format!("{name}{suffix}"))) {
            faults.push(format!("{name} is not used by any rule or dashboard"));
        }
    }
    for (name, label) in PLANNED_LABELS {
        match existing.get(name) {
            None => faults.push(format!("{name} does not exist")),
            Some(labels) if labels.iter().any(|it| it.name() == label) => {
                faults.push(format!("{name} has the label {label}: remove it from the list"));
            }
            Some(_) => {}
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_alert_is_described_and_tested() {
    let runbooks = std::fs::read_to_string(root().join(RUNBOOKS)).expect(RUNBOOKS);
    let (mut quiet, mut fires) = (BTreeSet::new(), BTreeSet::new());
    for (_, file) in read::<TestFile>("infra/prometheus/tests/", "yml") {
        for expected in file.tests.into_iter().flat_map(|case| case.promql_expr_test) {
            let Some(rest) = expected.expr.strip_prefix("ALERTS{alertname=\"") else { continue };
            let (alert, rest) = rest.split_once('"').unwrap_or_default();
            assert_eq!(rest, ",alertstate=\"firing\"}", "the test of {alert}");
            let seen = if expected.exp_samples.is_empty() { &mut quiet } else { &mut fires };
            seen.insert(alert.to_owned());
        }
    }
    let mut alerts = BTreeSet::new();
    let mut faults = Vec::new();
    for rule in rules() {
        let Some(alert) = rule.alert else { continue };
        let mut require = |holds: bool, what: &str| {
            if !holds {
                faults.push(format!("{alert}: {what}"));
            }
        };
        let severity = rule.labels.get("severity").map(String::as_str);
        require(matches!(severity, Some("critical" | "warning" | "info")), "severity");
        require(rule.r#for.is_some(), "no `for`");
        for name in ["summary", "description"] {
            require(rule.annotations.get(name).is_some_and(|text| text.len() > 20), name);
        }
        let anchor = format!("{RUNBOOKS}#{}", alert.to_lowercase());
        require(rule.annotations.get("runbook") == Some(&anchor), &format!("the runbook is not {anchor}"));
        require(fires.contains(&alert), "no test in which it fires");
        require(quiet.contains(&alert) || alert == ALWAYS, "no test in which it does not fire");
        alerts.insert(alert);
    }
    let described: BTreeSet<String> =
        runbooks.lines().filter_map(|line| line.strip_prefix("### ")).map(ToOwned::to_owned).collect();
    faults.extend(alerts.difference(&described).map(|alert| format!("{RUNBOOKS} lacks {alert}")));
    faults.extend(
        described.difference(&alerts).map(|alert| format!("{RUNBOOKS} has {alert}, which is not an alert")),
    );
    let tested: BTreeSet<String> = quiet.union(&fires).cloned().collect();
    faults
        .extend(tested.difference(&alerts).map(|alert| format!("a test has {alert}, which is not an alert")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn dashboards_have_the_right_shape() {
    let mut uids = BTreeSet::new();
    let mut faults = Vec::new();
    for (path, dashboard) in dashboards() {
        let mut require = |holds: bool, what: String| {
            if !holds {
                faults.push(format!("{path}: {what}"));
            }
        };
        let name = path.trim_start_matches("infra/grafana/").trim_end_matches(".json");
        require(dashboard.uid == format!("forebay-{name}") && uids.insert(dashboard.uid), "uid".into());
        require(
            !dashboard.title.is_empty() && !dashboard.description.is_empty(),
            "title, description".into(),
        );
        require(dashboard.tags == ["forebay"], "tags".into());
        // Grafana 10 writes 36 to 39, and reads older ones.
        require((36..=39).contains(&dashboard.schema_version), "schemaVersion".into());
        let variables = &dashboard.templating.list;
        require(
            variables
                .iter()
                .any(|it| it.name == "datasource" && it.r#type == "datasource" && it.query == "prometheus"),
            "no variable `datasource`".into(),
        );
        let sources = dashboard.annotations.list.iter().map(|it| Some(&it.datasource));
        let of_queries = variables.iter().filter(|it| it.r#type == "query").map(|it| it.datasource.as_ref());
        require(sources.chain(of_queries).all(is_variable), "another data source than the variable".into());
        let mut ids = BTreeSet::new();
        let mut placed: Vec<Position> = Vec::new();
        for panel in &dashboard.panels {
            let at = panel.grid_pos;
            require(ids.insert(panel.id), format!("id {} occurs twice", panel.id));
            require(
                at.w > 0 && at.h > 0 && at.x + at.w <= GRID_COLUMNS,
                format!("{}: beyond the grid", panel.title),
            );
            require(
                !placed.iter().any(|other| at.overlaps(*other)),
                format!("{}: covers another panel", panel.title),
            );
            placed.push(at);
            for fault in faults_of(panel) {
                require(false, format!("{}: {fault}", panel.title));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn is_variable(source: Option<&DataSource>) -> bool {
    source.is_some_and(|it| it.r#type == "prometheus" && it.uid == "${datasource}")
}

/// What is wrong with a panel, apart from its place.
fn faults_of(panel: &Panel) -> Vec<&'static str> {
    let row = panel.r#type == "row";
    let has_unit = panel.field_config.pointer("/defaults/unit").is_some_and(serde_json::Value::is_string);
    let ids: BTreeSet<&str> = panel.targets.iter().map(|query| query.ref_id.as_str()).collect();
    let labelled = |query: &Query| {
        query.format.as_deref() == Some("table")
            || query.legend_format.as_deref().is_some_and(|it| !it.is_empty())
    };
    let checks = [
        (panel.title.is_empty(), "no title"),
        (!panel.panels.is_empty(), "panels inside a row are not checked"),
        (row != panel.targets.is_empty(), "a row with queries, or a panel without"),
        (!row && panel.description.is_empty(), "no description"),
        (!row && !is_variable(panel.datasource.as_ref()), "another data source than the variable"),
        (!row && !has_unit && panel.r#type != "heatmap", "no unit"),
        (ids.len() != panel.targets.len(), "two queries with the same refId"),
        (!panel.targets.iter().all(labelled), "a query without a legend"),
    ];
    checks.into_iter().filter_map(|(fault, what)| fault.then_some(what)).collect()
}
