use std::path::Path;

use config::Environment;

use super::*;

fn load(toml: &str, environment: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forebay.toml");
    std::fs::write(&file, toml).unwrap();
    let variables = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Settings::load_with(&file, true, Environment::with_prefix("FOREBAY").source(Some(variables)))
}

#[test]
fn the_environment_wins_over_the_file_and_the_file_over_the_default() {
    let settings = load(
        "workspaces = 3\nattempts = 2",
        &[("FOREBAY_ATTEMPTS", "4"), ("FOREBAY_LOG", "debug"), ("OTHER", "x")],
    )
    .unwrap();
    assert_eq!((settings.workspaces, settings.attempts, settings.replicas), (3, 4, 1));
}

#[test]
fn tables_that_are_empty_by_default_are_known_too() {
    let file = "[capacity]\nx86 = 8.5\n[priority_limits.batch]\ntimeout_seconds = 3\n";
    let settings = load(file, &[]).unwrap();
    assert_eq!(settings.capacity.to_string(), "x86 8.5");
    assert_eq!(settings.priority_limits[&Priority::Batch].timeout_seconds, Some(3));
    assert!(load("[capacity]\nvax = 1", &[]).unwrap_err().to_string().contains("capacity is vax 1"));
    assert!(load("[priority_limits.batch]\ntimeout_seconds = 0", &[]).is_err());
    let choices = [
        ("band_order", "lifo", "`fcfs`"),
        ("estimator", "guess", "expected `thesis` or `adaptive`"),
        ("log_format", "xml", "expected `text` or `json`"),
        ("groups_without_quota", "allow", "expected `default` or `refuse`"),
        ("sandbox", "chroot", "expected `bubblewrap` or `none`"),
    ];
    for (name, value, wanted) in choices {
        let error = load(&format!("{name} = {value:?}"), &[]).unwrap_err();
        let text = std::error::Error::source(&error).unwrap().to_string();
        assert!([name, value, wanted].iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn each_priority_may_have_an_order_of_its_own() {
    let file = "band_order = \"edf\"\n[band_orders]\nbatch = \"spt-aged\"\n";
    let settings = load(file, &[]).unwrap();
    assert_eq!(settings.dispatcher().band_order_of(Priority::Batch), BandOrder::SptAged);
    assert_eq!(settings.dispatcher().band_order_of(Priority::Interactive), BandOrder::Edf);
    let by_variable = load("", &[("FOREBAY_BAND_ORDERS", r#"{"batch":"spt"}"#)]).unwrap();
    assert_eq!(by_variable.dispatcher().band_order_of(Priority::Batch), BandOrder::Spt);
    assert!(load("[band_orders]\nidle = \"spt\"", &[]).is_err());
}

#[test]
fn each_zone_may_have_a_limit_and_so_may_all_others() {
    let limit = |settings: &Settings, zone: &str| settings.store().zone_limits.of(&zone.parse().unwrap());
    let file = "zones = \"a=g\"\n[zone_limits]\na = { bytes_max = 5_000 }\n\"*\" = { blobs_max = 7 }\n";
    let settings = load(file, &[]).unwrap();
    assert_eq!(limit(&settings, "a").map(|limit| (limit.bytes_max, limit.blobs_max)), Some((5000, 0)));
    assert_eq!(limit(&settings, "default").map(|limit| limit.blobs_max), Some(7));
    let by_variable = load("", &[("FOREBAY_ZONE_LIMITS", r#"{"*":{"blobs_max":8}}"#)]).unwrap();
    assert_eq!(limit(&by_variable, "a").map(|limit| limit.blobs_max), Some(8));
    assert_eq!(limit(&load("", &[]).unwrap(), "a"), None);
    assert!(load("[zone_limits.a]\nbytes = 1\n", &[]).is_err());
}

#[test]
fn each_group_may_be_archived_for_days_of_its_own() {
    let settings = load("[archive_days_by_group]\nshort = 7\n", &[]).unwrap();
    assert_eq!(settings.archive_days_by_group, [("short".parse().unwrap(), 7)].into());
    let by_variable = load("", &[("FOREBAY_ARCHIVE_DAYS_BY_GROUP", r#"{"long":3650}"#)]).unwrap();
    assert_eq!(by_variable.archive_days_by_group, [("long".parse().unwrap(), 3650)].into());
    for refused in ["short = 0", "long = 36501", "\"a b\" = 7"] {
        assert!(load(&format!("[archive_days_by_group]\n{refused}"), &[]).is_err(), "{refused}");
    }
}

#[test]
fn a_misspelt_name_in_the_file_is_an_error() {
    let error = load("workspcaes = 3", &[]).unwrap_err().to_string();
    assert!(error.contains("workspcaes"), "{error}");
}

#[test]
fn a_setting_of_an_earlier_version_is_reported_and_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forebay.toml");
    assert!(earlier_names(&file).is_empty());
    let toml = "workspaces = 3\nstore_url = \"file:///old\"\n";
    assert_eq!(load(toml, &[]).unwrap().workspaces, 3);
    std::fs::write(&file, toml).unwrap();
    let messages = earlier_names(&file);
    assert!(messages.len() == 1 && ["store_url", "cas_url"].iter().all(|name| messages[0].contains(name)));
}

#[test]
fn events_must_outlast_the_longest_build() {
    let error = load("events_days = 3", &[]).unwrap_err().to_string();
    assert!(error.contains("events_days is 3"), "{error}");
}

#[test]
fn a_named_file_may_lack_its_extension() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("forebay.toml"), "workspaces = 3").unwrap();
    let environment = Environment::with_prefix("FOREBAY").source(Some(config::Map::default()));
    let settings = Settings::load_with(&folder.path().join("forebay"), true, environment).unwrap();
    assert_eq!(settings.workspaces, 3);
}

#[test]
fn nonsense_is_named() {
    assert!(load("replicas = 2", &[]).unwrap_err().to_string().contains("replicas is 2"));
    assert!(load("", &[("FOREBAY_ATTEMPTS", "x")]).is_err());
    assert!(load("cas_bytes_max = 0", &[]).unwrap_err().to_string().contains("cas_bytes_max is 0"));
    let missing = Settings::load(Path::new("/nonexistent/forebay.toml"), true).unwrap_err().to_string();
    assert_eq!(missing, "settings file /nonexistent/forebay.toml not found");
    for (toml, wanted) in [
        ("attempts = -1", "expected 0 or more"),
        ("workspaces = 70000", "expected 0 to 65535"),
        ("[autoscale]\nworkers = \"0..4\"", "{ min = 0, max = 4 }"),
        ("autoscale = \"workers=0..4\"", "expected a list or table"),
    ] {
        let error = load(toml, &[]).unwrap_err();
        let text = std::error::Error::source(&error).unwrap().to_string();
        assert!(text.contains(wanted), "{toml}: {text}");
    }
}

#[test]
fn without_a_file_the_defaults_hold() {
    let settings = Settings::load_with(
        Path::new("/nonexistent/forebay.toml"),
        false,
        Environment::with_prefix("FOREBAY").source(Some(std::collections::HashMap::new())),
    )
    .unwrap();
    assert_eq!(settings, Settings::default());
}

#[test]
fn lists_and_tables_come_from_a_file_or_as_json_from_a_variable() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forebay.toml");
    std::fs::write(&file, "[pool_properties]\nOSFamily = [\"linux\"]\nGPU = [\"none\", \"a100\"]\n").unwrap();
    let none = || Environment::with_prefix("FOREBAY").source(Some(std::collections::HashMap::new()));
    let settings = Settings::load_with(&file, true, none()).unwrap();
    assert_eq!(settings.pool_properties["GPU"], ["none", "a100"]);
    let variables =
        [("FOREBAY_POOL_PROPERTIES", r#"{"OSFamily":["linux"]}"#), ("FOREBAY_SANDBOX_READ_ONLY", "[\"/x\"]")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
    let environment = Environment::with_prefix("FOREBAY").source(Some(variables));
    let settings = Settings::load_with(&file, true, environment).unwrap();
    assert_eq!(settings.sandbox_read_only, [PathBuf::from("/x")]);
    assert!(settings.pool_properties.contains_key("OSFamily"));
}

#[test]
fn a_sandbox_shows_what_is_below_tmp_and_nothing_of_the_kernel() {
    let showing = |path: &str| {
        let sandbox_read_only = vec![PathBuf::from(path)];
        Settings { sandbox_read_only, ..Settings::default() }.check().map_err(|error| error.to_string())
    };
    for path in ["/tmp/a", "/tmp/a b/c", "/var/tmp/a", "/opt"] {
        showing(path).unwrap();
    }
    for path in ["/tmp", "/tmp/", "/var/tmp", "/dev", "/dev/shm/a", "/proc/1", "a", "~/a"] {
        assert!(showing(path).unwrap_err().contains("outside of /dev and /proc"), "{path}");
    }
}

#[test]
fn a_pool_that_is_looked_at_too_seldom_to_shrink_is_refused() {
    let with = |scale_in_after_seconds, tick| {
        let pool = PoolScaling { max: 4, scale_in_after_seconds, ..PoolScaling::default() };
        let autoscale = [(model::ScaledPool::Workers, pool)].into();
        Settings { autoscale, autoscale_tick_ms: tick, ..Settings::default() }.check()
    };
    let text = with(3.0, 2000).unwrap_err().to_string();
    assert!(text.contains("scale_in_after_seconds 3 of workers"), "{text}");
    assert!(with(8.0, 2000).is_ok() && with(0.0, 2000).is_ok() && with(600.0, 2000).is_ok());
}
