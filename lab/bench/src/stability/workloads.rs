//! The programs whose times are measured (thesis on load balancing in evaluation systems, section 2.1.4).

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use crate::error::BenchError;

const SOURCE: &str = include_str!("workloads.c");
/// Sorts by a function of its own, so that the interpreter runs, not a library.
const PYTHON: &str = "\
import random, sys
random.seed(7)
def sort(all):
    if len(all) < 2: return all
    pivot = all[len(all) // 2]
    return sort([x for x in all if x < pivot]) + [x for x in all if x == pivot] + sort([x for x in all if x > pivot])
sort([random.random() for _ in range(int(sys.argv[1]))])
";

/// One program with the amount of its work.
#[derive(Debug, Clone)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    /// Number of steps of its work.
    pub(super) count: u64,
    /// Whether it needs an interpreter of the machine.
    pub(super) is_python: bool,
}

impl Workload {
    /// The programs, each with a first amount of work.
    pub(super) fn all() -> Vec<Self> {
        let of = |name, count| Self { name, count, is_python: false };
        let mut all = vec![
            of("exp_float", 2_000_000),
            of("exp_double", 2_000_000),
            of("gray2bin", 5_000_000),
            of("bsearch", 300_000),
            of("insertion", 500_000),
            of("qsort", 300_000),
        ];
        if Path::new("/usr/bin/python3").is_file() {
            all.push(Self { name: "qsort_python", count: 20_000, is_python: true });
        }
        all
    }

    /// The same with so many times the work.
    pub(super) fn times(&self, factor: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of steps, above 0"
        )]
        let count = (self.count as f64 * factor).round().max(1.0) as u64;
        Self { count, ..self.clone() }
    }

    /// Its command line, in the folder that [`install`] filled.
    pub(super) fn command(&self) -> Vec<String> {
        let count = self.count.to_string();
        if self.is_python {
            return vec!["/usr/bin/python3".to_owned(), "sort.py".to_owned(), count];
        }
        vec!["./workloads".to_owned(), self.name.to_owned(), count]
    }
}

/// Compiles the programs into `folder`. They need no libraries.
pub(super) fn install(folder: &Path) -> Result<(), BenchError> {
    let failed = |what: &str, error: &dyn std::error::Error| BenchError::new(what, error);
    fs::create_dir_all(folder).map_err(|error| failed("creating a folder", &error))?;
    let (source, program): (PathBuf, PathBuf) = (folder.join("workloads.c"), folder.join("workloads"));
    fs::write(&source, SOURCE).map_err(|error| failed("writing the workloads", &error))?;
    fs::write(folder.join("sort.py"), PYTHON).map_err(|error| failed("writing the workloads", &error))?;
    let compiled =
        Command::new("cc").args(["-O2", "-static", "-o"]).arg(&program).arg(&source).arg("-lm").output();
    let compiled = compiled.map_err(|error| failed("starting the C compiler `cc`", &error))?;
    if !compiled.status.success() {
        let said = String::from_utf8_lossy(&compiled.stderr).into_owned();
        return Err(BenchError::plain(format!("compiling the workloads: {said}")));
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        .map_err(|error| failed("installing the workloads", &error))
}
