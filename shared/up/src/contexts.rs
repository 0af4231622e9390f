//! What the builds of a farm on a developer's machine may read: the user's own folders and servers.

use std::path::PathBuf;

use model::{FetchHost, is_loopback_listen};
use settings::Settings;

/// Opens the user's home folder, the current folder and the loopback addresses to the builds of a farm that other
/// machines cannot reach; returns a line about it for the user.
pub(crate) fn open(settings: &mut Settings, has_own_bus: bool) -> String {
    let is_local =
        [&settings.http_listen, &settings.grpc_listen].into_iter().all(|listen| is_loopback_listen(listen));
    // With access rules, callers are not all the user of this machine.
    if has_own_bus && is_local && settings.gateway_access_file.is_none() {
        let found = [std::env::current_dir().ok(), std::env::var_os("HOME").map(PathBuf::from)];
        // A service of the machine often runs in `/`, which is not meant.
        let is_meant =
            |folder: &PathBuf| folder.is_absolute() && folder.parent().is_some() && folder.to_str().is_some();
        for folder in found.into_iter().flatten().filter(is_meant) {
            if !settings.context_paths.contains(&folder) {
                settings.context_paths.push(folder);
            }
        }
        settings.fetch_hosts.extend(FetchHost::loopback());
    }
    let name = |path: &PathBuf| path.display().to_string();
    let folders: Vec<String> = settings.context_paths.iter().map(name).collect();
    let hosts: Vec<String> = settings.fetch_hosts.iter().map(ToString::to_string).collect();
    let list =
        |items: &[String], none: &str| if items.is_empty() { none.to_owned() } else { items.join(", ") };
    let line = format!(
        "builds may read {} (context_paths) and fetch from {} (fetch_hosts)",
        list(&folders, "no folder of this machine"),
        list(&hosts, "other machines only"),
    );
    if settings.gateway_access_file.is_some() && settings.gateway_token_file.is_none() {
        return format!("{line}\n  jobs fail: gateways have access rules, and gateway_token_file is not set");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_farm_that_others_cannot_reach_opens_the_users_folders() {
        let mut own = Settings { context_paths: vec!["/srv".into()], ..Settings::default() };
        let line = open(&mut own, true);
        let current = std::env::current_dir().unwrap();
        assert!(own.context_paths.contains(&current) && own.context_paths.contains(&"/srv".into()));
        assert!(line.contains("/srv, ") && line.contains("127.0.0.0/8, ::1"), "{line}");
        assert!(own.check().is_ok());
        let shared = Settings { grpc_listen: "0.0.0.0:8980".into(), ..Settings::default() };
        let ruled = Settings { gateway_access_file: Some("rules".into()), ..Settings::default() };
        for (mut settings, has_own_bus) in [(shared, true), (ruled, true), (Settings::default(), false)] {
            let line = open(&mut settings, has_own_bus);
            assert!(settings.context_paths.is_empty() && settings.fetch_hosts.is_empty());
            assert!(line.contains("no folder of this machine"), "{line}");
            assert_eq!(line.contains("gateway_token_file"), settings.gateway_access_file.is_some());
        }
    }
}
