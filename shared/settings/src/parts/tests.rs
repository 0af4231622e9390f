use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use crate::Settings;

/// Settings of which each time and size, and most counts, have a prime of their own.
fn settings() -> Settings {
    Settings {
        request_head_timeout_seconds: 2,
        request_body_timeout_seconds: 3,
        timeout_seconds: 5,
        timeout_seconds_max: 7,
        queue_timeout_seconds: 11,
        queue_timeout_seconds_max: 13,
        lease_ttl_seconds: 17,
        lease_ttl_seconds_max: 19,
        offer_timeout_ms: 23,
        heartbeat_seconds: 29,
        overrun_seconds: 31,
        governor_tick_ms: 37,
        autoscale_tick_ms: 41,
        training_seconds: 43,
        kill_grace_ms: 47,
        drain_seconds: 53,
        orphan_seconds: 59,
        fetch_timeout_seconds: 61,
        action_timeout_seconds: 67,
        action_timeout_seconds_max: 71,
        action_queue_timeout_seconds: 73,
        action_waiter_grace_ms: 79,
        action_cpu_seconds_max: 83,
        action_hedge_delay_ms: 89,
        action_affinity_wait_ms: 101,
        custom_resource_patience_seconds: 103,
        window_tick_ms: 107,
        image_bytes_max: 5077,
        image_tag_seconds: 5081,
        cas_keep_seconds: 109,
        cas_keep_min_seconds: 113,
        events_days: 127,
        audit_days: 277,
        audit_bytes_max: 281,
        rejected_days: 131,
        archive_days: 269,
        archive_bytes_max: 271,
        actions_days: 137,
        log_streams_days: 139,
        objects_days: 149,
        bazel_bytes_max: 153,
        events_bytes_max: 151,
        requests_bytes_max: 157,
        actions_bytes_max: 163,
        request_bytes_max: 167,
        job_bytes_max: 173,
        console_bytes_max: 179,
        log_bytes_max: 181,
        output_bytes_max: 191,
        build_uid: 5021,
        unpacked_bytes_max: 193,
        workspace_memory_bytes: 5003,
        workspace_processes_max: 5009,
        workspace_disk_bytes: 5011,
        sensor_seconds: 5021,
        tool_age_seconds: 5039,
        alone_patience_seconds: 5051,
        build_window_growth_ms: 5023,
        action_output_bytes_max: 197,
        action_memory_bytes_max: 199,
        action_disk_bytes_max: 211,
        cas_bytes_max: 223,
        cas_memory_bytes: 227,
        cas_blob_bytes_max: 229,
        executor_memory_bytes: 233,
        action_processes_max: 239,
        action_files_max: 241,
        executor_cpu_millis: 251,
        job_tasks_max: 257,
        job_tasks_in_flight: 263,
        tool_memory_percent: 61,
        memory_left_percent: 67,
        disk_left_percent: 71,
        ..Settings::default()
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn days(days: u64) -> Duration {
    Duration::from_secs(days * 24 * 60 * 60)
}

#[test]
fn every_time_and_size_has_a_value_of_its_own_here() {
    let [set, default] = [settings(), Settings::default()].map(|of| serde_json::to_value(of).unwrap());
    let has_unit = |name: &str| ["_seconds", "_ms", "_days", "_bytes"].iter().any(|unit| name.contains(unit));
    let mut values = BTreeSet::new();
    let is_one = |name: &str, value: &Value| has_unit(name) && !value.is_object();
    for (name, value) in set.as_object().unwrap().iter().filter(|(name, value)| is_one(name, value)) {
        assert_ne!(default.get(name), Some(value), "{name} is not in this test");
        assert!(values.insert(value.as_u64().unwrap()), "{name} has the value of another setting");
    }
    assert!(values.len() > 40 && default.get("nats_url").is_some_and(Value::is_string));
}

#[test]
fn times_of_services_reach_their_parts() {
    let settings = settings();
    let connections = settings.service("cas").connections;
    assert_eq!(connections.request_head_timeout, seconds(2));
    assert_eq!(connections.request_body_timeout, seconds(3));
    let dispatcher = settings.dispatcher();
    assert_eq!((dispatcher.offer_timeout, dispatcher.overrun), (millis(23), seconds(31)));
    let reaper = settings.reaper();
    assert_eq!((reaper.overrun, reaper.lease_ttl), (seconds(31), seconds(17)));
    let worker = settings.worker();
    assert_eq!([worker.heartbeat, worker.kill_grace, worker.drain], [seconds(29), millis(47), seconds(53)]);
    let executor = settings.executor();
    assert_eq!([executor.heartbeat, executor.lease_ttl], [seconds(29), seconds(17)]);
    assert_eq!([executor.kill_grace, executor.drain], [millis(47), seconds(53)]);
    assert_eq!(executor.sensors.tick, millis(107));
    assert_eq!((executor.sensors.every, worker.window_growth), (seconds(5021), millis(5023)));
    assert_eq!(worker.limits.disk_bytes, Some(5011));
    assert_eq!(worker.tool_age, Some(seconds(5039)));
    assert_eq!(executor.alone_patience, seconds(5051));
    let watchdog = settings.watchdog();
    assert_eq!([watchdog.orphan_patience, watchdog.drain], [seconds(59), seconds(53)]);
    assert_eq!(settings.governor().tick, millis(37));
    assert_eq!(settings.autoscaler().tick, millis(41));
    assert_eq!(settings.trainer().training_interval, seconds(43));
    let gateway = settings.gateway();
    assert_eq!([gateway.action_timeout, gateway.action_timeout_max], [seconds(67), seconds(71)]);
    assert_eq!([gateway.action_queue_timeout, gateway.fetch_timeout], [seconds(73), seconds(61)]);
    assert_eq!(gateway.action_waiter_grace, millis(79));
    let scheduler = settings.scheduler();
    assert_eq!(scheduler.affinity_wait, millis(101));
    assert_eq!([scheduler.custom_resource_patience, scheduler.lease_ttl], [seconds(103), seconds(17)]);
    assert_eq!(scheduler.hedges.delay, millis(89));
}

#[test]
fn what_is_kept_for_emergencies_reaches_those_who_keep_it() {
    let settings =
        Settings { emergency_workspaces: 3, emergency_slots: 2, executor_slots: 4, ..Settings::default() };
    let kept = [settings.dispatcher().emergency_workspaces, settings.enqueuer().emergency_workspaces];
    assert_eq!((kept, settings.executor().emergency_slots), ([3, 3], 2));
    assert!(settings.check().is_ok());
    let all = Settings { emergency_slots: 4, ..settings };
    assert!(all.check().is_err_and(|error| error.to_string().contains("emergency_slots is 4")));
    assert_eq!(all.executor().emergency_slots, 3, "one slot is left for others");
}

#[test]
fn times_of_requests_reach_the_enqueuer() {
    let limits = settings().enqueuer().request_limits;
    let (times, most) = (limits.times, limits.times_max);
    assert_eq!([times.timeout_seconds, times.queue_timeout_seconds, times.lease_ttl_seconds], [5, 11, 17]);
    assert_eq!([most.timeout_seconds, most.queue_timeout_seconds, most.lease_ttl_seconds], [7, 13, 19]);
}

#[test]
fn times_and_sizes_of_stores_and_streams_reach_their_parts() {
    let store = settings().store();
    assert_eq!([store.keep, store.keep_min, store.retention], [seconds(109), seconds(113), days(149)]);
    assert_eq!([store.bytes_max, store.memory_bytes, store.blob_bytes_max], [223, 227, 229]);
    let archive = settings().archive();
    assert_eq!((archive.retention, archive.size_max), (days(269), 271));
    let longer = Settings { events_days: 151, ..settings() };
    assert_eq!(longer.store().retention, days(151));
    let days_of = |group: &str, days| [(group.parse().unwrap(), days)].into();
    let archived = Settings { archive_keeps_blobs: true, ..settings() };
    assert_eq!(archived.archive().blobs_retention, days(269));
    let by_group = Settings { archive_days_by_group: days_of("g", 277), ..archived };
    assert_eq!(by_group.archive().blobs_retention, days(277));
    let unkept = Settings { archive_keeps_blobs: false, ..by_group.clone() };
    assert_eq!(unkept.archive().blobs_retention, days(0));
    assert_eq!(by_group.archive().retention_by_group, [("g".parse().unwrap(), days(277))].into());
    let topology = settings().topology();
    assert_eq!([topology.events_retention, topology.rejected_retention], [days(127), days(131)]);
    assert_eq!([topology.actions_retention, topology.log_streams_retention], [days(137), days(139)]);
    assert_eq!([topology.events_bytes_max, topology.requests_bytes_max], [151, 157]);
    assert_eq!(topology.bazel_bytes_max, 153);
    assert_eq!((topology.audit_retention, topology.audit_bytes_max), (days(277), 281));
    assert_eq!(topology.actions_bytes_max, 163);
}

#[test]
fn sizes_and_limits_reach_their_parts() {
    let settings = settings();
    let enqueuer = settings.enqueuer();
    assert_eq!((enqueuer.request_limits.request_bytes_max, settings.gateway().request_bytes_max), (167, 167));
    assert_eq!((enqueuer.job_limits.bytes_max, enqueuer.job_limits.tasks_max), (173, 257));
    let worker = settings.worker();
    assert_eq!([worker.console_bytes_max, worker.log_bytes_max], [179, 181]);
    assert_eq!([worker.output_bytes_max, worker.unpacked_bytes_max], [191, 193]);
    assert_eq!([worker.limits.memory_bytes, worker.limits.processes], [Some(5003), Some(5009)]);
    assert_eq!((worker.action_output_bytes_max, worker.job_tasks_in_flight), (197, 263));
    assert_eq!([worker.tool_memory_percent, worker.disk_left_percent], [61, 71]);
    assert_eq!((worker.first_uid, Settings::default().worker().first_uid), (Some(5021), None));
    let executor = settings.executor();
    assert_eq!([executor.cpu_millis, executor.memory_bytes], [251, 233]);
    assert_eq!(executor.action_output_bytes_max, 197);
    assert_eq!(
        (settings.gateway().images.bytes_max, settings.gateway().images.tag_ttl),
        (5077, seconds(5081))
    );
    assert_eq!([executor.sensors.memory_left_percent, executor.sensors.disk_left_percent], [67, 71]);
    assert_eq!((settings.store().disk_left_percent, settings.gateway().fetch_bytes_max), (71, 229));
    let limits = [executor.action_limits, settings.gateway().action_limits, enqueuer.job_limits.task_max];
    for limit in limits {
        assert_eq!([limit.cpu_ms, limit.wall_ms], [Some(83_000), Some(71_000)]);
        assert_eq!([limit.memory_bytes, limit.disk_bytes], [Some(199), Some(211)]);
        assert_eq!([limit.processes, limit.files], [Some(239), Some(241)]);
        assert_eq!(limit.output_bytes, Some(197));
    }
}

#[test]
fn both_sandboxes_hide_the_data_folder_and_what_the_setting_lists() {
    let settings = Settings {
        data: "/opt/farm".into(),
        sandbox_hidden: vec!["/etc/keys".into()],
        sandbox_filter: false,
        secrets_folder: Some("/srv/secrets".into()),
        ..Settings::default()
    };
    for of in [settings.executor().sandboxes, settings.worker().sandboxes] {
        let hidden: Vec<_> = of.hidden.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!((hidden, of.filter), (vec!["/etc/keys", "/opt/farm", "/srv/secrets"], false));
    }
    assert!(Settings::default().executor().sandboxes.filter);
}

#[test]
fn where_sources_may_come_from_reaches_those_who_fetch_them() {
    let hosts = vec!["127.0.0.0/8".parse().unwrap(), "[::1]:80".parse().unwrap()];
    let settings = Settings {
        context_paths: vec!["/srv/src".into()],
        fetch_hosts: hosts.clone(),
        ..Settings::default()
    };
    let contexts = settings.worker().contexts;
    assert_eq!((contexts.context_paths, contexts.fetch_hosts), (vec!["/srv/src".into()], hosts.clone()));
    assert_eq!(settings.gateway().fetch_hosts, hosts);
    assert!(settings.check().is_ok());
    let relative = Settings { context_paths: vec!["src".into()], ..settings };
    assert!(relative.check().is_err_and(|error| error.to_string().contains("context_paths is src")));
    let nothing = Settings::default().worker().contexts;
    assert!(nothing.context_paths.is_empty() && nothing.fetch_hosts.is_empty());
}
