//! The file of a plot, which exists before a benchmark takes its minutes.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
};

use policy::measurement::{Sample, Statistic};
use simulate::{IntervalChart, IntervalRow, plot_intervals};

use crate::error::BenchError;

/// The charts that a benchmark collects, and the file that they are written to; nothing is written without a file.
#[derive(Debug)]
pub(crate) struct PlotFile {
    file: Option<(PathBuf, File)>,
    charts: Vec<IntervalChart>,
}

impl PlotFile {
    /// Creates the file, or empties an existing one. Only some parts of a benchmark can be drawn.
    pub(crate) fn create(path: Option<&Path>, can_draw: bool) -> Result<Self, BenchError> {
        if path.is_some() && !can_draw {
            return Err(BenchError::Usage("--plot: this part of the benchmark cannot be drawn".to_owned()));
        }
        let create = |path: &Path| {
            let file = File::create(path);
            let file =
                file.map_err(|error| BenchError::usage(format!("--plot {}", path.display()), &error))?;
            Ok::<_, BenchError>((path.to_owned(), file))
        };
        Ok(Self { file: path.map(create).transpose()?, charts: Vec::new() })
    }

    pub(crate) fn add(&mut self, title: &str, axis: &str, rows: Vec<IntervalRow>) {
        self.charts.push(IntervalChart { title: title.to_owned(), axis: axis.to_owned(), rows });
    }

    /// Writes the charts; `interval` says what the lines beside the points are.
    pub(crate) fn write(self, title: &str, interval: &str) -> Result<(), BenchError> {
        let Some((path, mut file)) = self.file else { return Ok(()) };
        let written = file.write_all(plot_intervals(title, interval, &self.charts).as_bytes());
        written.map_err(|error| BenchError::new(format!("writing {}", path.display()), &error))
    }
}

/// A row with the median of times in microseconds and its 95 % interval, in milliseconds.
pub(crate) fn median_row(name: impl Into<String>, times_us: &Sample) -> IntervalRow {
    let interval = times_us.interval(Statistic::Median);
    IntervalRow {
        name: name.into(),
        low: interval.low / 1000.0,
        value: times_us.median() / 1000.0,
        high: interval.high / 1000.0,
    }
}
