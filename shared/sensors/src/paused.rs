//! Whether an operator has paused this executor with a file `paused` in its directory (`executor/0` in the data
//! directory, for example). The content of the file is reported as the reason. Running actions continue.

use std::{io::Read as _, path::Path, path::PathBuf};

use crate::{Kind, Reading, Sensor, SensorInput, open_regular};

/// Maximum number of characters of the reported reason.
const REASON: usize = 200;
/// Number of bytes that are read.
const BYTES: u64 = 4096;

pub(crate) struct Paused(PathBuf);

impl Paused {
    pub(crate) fn new(own: &Path) -> Self {
        Self(own.join("paused"))
    }
}

impl Sensor for Paused {
    fn name(&self) -> &'static str {
        "paused"
    }

    fn kind(&self) -> Kind {
        Kind::Stop
    }

    fn read(&mut self, _: SensorInput) -> Reading {
        if !self.0.exists() {
            return Reading::green();
        }
        let mut text = Vec::new();
        // A file that cannot be read is there all the same.
        let _ = open_regular(&self.0).and_then(|file| file.take(BYTES).read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        let said: String = text.trim().chars().filter(|c| !c.is_control()).take(REASON).collect();
        let colon = if said.is_empty() { "" } else { ": " };
        Reading::red(format!("paused by {}{colon}{said}", self.0.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use policy::Signal;

    use super::*;

    #[test]
    fn it_is_paused_as_long_as_the_file_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let mut sensor = Paused::new(folder.path());
        let mut read = || sensor.read(SensorInput::default());
        assert_eq!(read(), Reading::green());
        fs::write(folder.path().join("paused"), "a new kernel\n").unwrap();
        let reading = read();
        assert_eq!(reading.signal, Signal::Red);
        assert!(reading.why.ends_with("paused: a new kernel"), "{}", reading.why);
        fs::remove_file(folder.path().join("paused")).unwrap();
        assert_eq!(read(), Reading::green());
    }
}
