//! A file with a number, which something outside of the farm writes.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use crate::open_regular;
use crate::{Kind, Reading, Sensor, SensorInput, value};

/// Number of bytes that are read.
const BYTES: u64 = 4096;

pub(crate) struct FileSensor {
    file: PathBuf,
    most: f64,
}

impl FileSensor {
    pub(crate) fn new(file: &Path, most: f64) -> Self {
        Self { file: file.to_owned(), most }
    }
}

impl Sensor for FileSensor {
    fn name(&self) -> &'static str {
        "file"
    }

    fn kind(&self) -> Kind {
        Kind::Congestion
    }

    fn read(&mut self, _: SensorInput) -> Reading {
        let mut text = Vec::new();
        // Without the file, nothing says that the machine is overloaded.
        let read = open_regular(&self.file).and_then(|file| file.take(BYTES).read_to_end(&mut text));
        if read.is_err() {
            return Reading::green();
        }
        value::judge(&self.file.display().to_string(), &String::from_utf8_lossy(&text), self.most)
    }
}
