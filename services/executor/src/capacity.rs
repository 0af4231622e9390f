//! Capacity of an executor: from the settings, otherwise from the machine.

use std::path::Path;

use model::{Amount, Resources};
use sensors::machine_memory;
use service::ServiceError;
use settings::ExecutorSettings;

/// Processors, memory and custom resources that actions may hold together. `proc` is the path of `/proc`.
pub(crate) fn capacity(settings: &ExecutorSettings, proc: &Path) -> Result<Resources, ServiceError> {
    let cpu_millis = match settings.cpu_millis {
        0 => 1000 * u64::from(settings.slots),
        millis => millis,
    };
    let memory_bytes = match settings.memory_bytes {
        0 => {
            let all = machine_memory(proc).map_err(|error| {
                let what = "reading the memory size (set executor_memory_bytes instead)";
                ServiceError::failed(what, error)
            })?;
            all / 10 * 9
        }
        bytes => bytes,
    };
    let devices = settings.devices.iter().map(|(name, all)| (name.clone(), count(all.len())));
    let custom = devices.chain(settings.resources.clone()).collect();
    Ok(Resources { cpu_millis, memory_bytes, custom })
}

fn count(devices: usize) -> Amount {
    Amount::whole(u32::try_from(devices).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use settings::Settings;

    use super::*;

    #[test]
    fn it_is_what_the_settings_say_else_what_the_machine_has() {
        let proc = tempfile::tempdir().unwrap();
        let meminfo = "MemTotal: 1000 kB\nMemAvailable: 10 kB\n";
        std::fs::write(proc.path().join("meminfo"), meminfo).unwrap();
        let mut settings = Settings { executor_slots: 4, ..Settings::default() }.executor();
        assert_eq!(capacity(&settings, proc.path()).unwrap(), Resources::new(4000, 921_600));
        settings.cpu_millis = 2500;
        settings.memory_bytes = 77;
        settings.resources.insert("gpu".parse().unwrap(), Amount::whole(2));
        let all = capacity(&settings, Path::new("/nowhere")).unwrap();
        assert_eq!((all.cpu_millis, all.memory_bytes), (2500, 77));
        assert_eq!(all.custom(&"gpu".parse().unwrap()), Amount::whole(2));
        settings.devices.insert("board".parse().unwrap(), vec![vec!["/dev/null".into()]; 3]);
        let all = capacity(&settings, Path::new("/nowhere")).unwrap();
        assert_eq!(all.custom(&"board".parse().unwrap()), Amount::whole(3));
        settings.memory_bytes = 0;
        assert!(capacity(&settings, Path::new("/nowhere")).is_err());
    }
}
