//! Validation of what actions may get of the machine: devices and its network.

use std::{collections::BTreeSet, path::Path};

use model::Amount;

use crate::{Settings, SettingsError, check::invalid};

impl Settings {
    pub(crate) fn check_devices(&self) -> Result<(), SettingsError> {
        for (resource, entries) in &self.executor_devices {
            for entry in entries {
                if !entry.split('+').all(|node| Path::new(node).is_absolute()) {
                    let wanted =
                        "expected absolute paths of device nodes, joined by + if one device has several";
                    return Err(invalid("executor_devices", &format!("{entry} of {resource}"), wanted));
                }
            }
            let different: BTreeSet<&String> = entries.iter().collect();
            if different.len() < entries.len() {
                let wanted = "expected each device once";
                return Err(invalid("executor_devices", &format!("{entries:?} of {resource}"), wanted));
            }
            let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
            let set = self.executor_resources.get(resource);
            if let Some(amount) = set.filter(|amount| **amount != Amount::whole(count)) {
                let wanted = format!("executor_devices lists {count}: expected that number, or no entry");
                return Err(invalid("executor_resources", &format!("{amount} of {resource}"), &wanted));
            }
        }
        for (resource, variable) in &self.executor_device_variables {
            if variable.is_empty() || variable.contains(['=', '\0']) {
                let value = format!("{variable:?} of {resource}");
                let wanted = "expected the name of an environment variable";
                return Err(invalid("executor_device_variables", &value, wanted));
            }
        }
        let offers_network =
            self.pool_properties.get("network").is_some_and(|all| all.iter().any(|it| it == "on"));
        if offers_network && !self.action_network {
            let wanted = "expected action_network = true, which offers the network of this machine";
            return Err(invalid("pool_properties", &"network = on", wanted));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::Settings;

    fn of(toml: &str) -> Result<Settings, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("forebay.toml");
        std::fs::write(&file, toml).unwrap();
        Settings::load(&file, true).map_err(|error| error.to_string())
    }

    #[test]
    fn devices_have_nodes_and_a_variable_and_are_as_many_as_their_resource() {
        let entries = r#"executor_devices = { gpu = ["/dev/a0+/dev/ctl", "/dev/a1+/dev/ctl"] }"#;
        let settings = of(entries).unwrap().executor();
        let gpu = "gpu".parse().unwrap();
        let nodes: Vec<_> = settings.devices[&gpu][1].iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!((nodes, settings.devices[&gpu].len()), (vec!["/dev/a1", "/dev/ctl"], 2));
        assert_eq!(settings.device_variables[&gpu], "CUDA_VISIBLE_DEVICES");
        assert!(of(&format!("{entries}\nexecutor_resources = {{ gpu = 2, licence = 9 }}")).is_ok());
        for (toml, wanted) in [
            (&*format!("{entries}\nexecutor_resources = {{ gpu = 3 }}"), "executor_devices lists 2"),
            (r#"executor_devices = { gpu = ["dev/a0"] }"#, "absolute paths"),
            (r#"executor_devices = { gpu = ["/dev/a0+"] }"#, "absolute paths"),
            (r#"executor_devices = { gpu = ["/dev/a0", "/dev/a0"] }"#, "each device once"),
            (r#"executor_device_variables = { gpu = "A=B" }"#, "environment variable"),
            ("[pool_properties]\nnetwork = [\"on\"]", "action_network"),
        ] {
            let error = of(toml).unwrap_err();
            assert!(error.contains(wanted), "{toml}: {error}");
        }
        assert!(of("action_network = true\n[pool_properties]\nnetwork = [\"on\"]").is_ok());
    }
}
