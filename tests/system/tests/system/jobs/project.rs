//! A real project as a graph: built as `make` builds it, and rebuilt only as far as it has changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use farm::Farm;
use model::{Job, Outcome, TaskStatus};

use super::{Ended, builder, request_in, run, start};

/// The sources of Lua, and the job that corresponds to its makefile.
struct Project {
    folder: tempfile::TempDir,
    job: Job,
}

const MAKE: [&str; 4] = ["make", "-f", "plain.mk", "all"];
const OUTPUTS: [&str; 4] = ["src/lua", "src/luac", "src/liblua.a", "src/*.o"];

fn done(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

impl Project {
    /// Fetches it into a folder below `parent`.
    fn lua_in(parent: &Path) -> Self {
        let repository = farm::repository();
        let folder = tempfile::tempdir_in(parent).unwrap();
        done(Command::new(repository.join("infra/demo/fetch.sh")).arg("lua").arg(folder.path()));
        let script = repository.join("examples/jobs/make_job.py");
        let mut make = Command::new(script);
        make.args(["--test", "src/lua {}", "t/*.lua", "--"]).args(MAKE).current_dir(folder.path());
        let job = serde_json::from_slice(&done(&mut make)).unwrap();
        Self { folder, job }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Runs `make` in a copy and returns its outputs.
    fn made(&self) -> BTreeMap<String, Vec<u8>> {
        let copy = tempfile::tempdir().unwrap();
        done(Command::new("cp").arg("-R").arg(self.path().join(".")).arg(copy.path()));
        done(Command::new(MAKE[0]).args(&MAKE[1..]).current_dir(copy.path()));
        let mut made = BTreeMap::new();
        for entry in fs::read_dir(copy.path().join("src")).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if matches!(name, "lua" | "luac" | "liblua.a") || path.extension().is_some_and(|end| end == "o") {
                made.insert(format!("src/{name}"), fs::read(&path).unwrap());
            }
        }
        made
    }

    async fn build(&self, farm: &Farm) -> Ended {
        let mut request = request_in(self.job.clone(), self.path());
        request.outputs = OUTPUTS.map(str::to_owned).to_vec();
        run(farm, request).await
    }

    /// Changes a file of the project.
    fn edit(&self, file: &str, change: impl Fn(String) -> String) {
        let path = self.path().join(file);
        let text = fs::read_to_string(&path).unwrap();
        let changed = change(text.clone());
        assert_ne!(text, changed, "{file} changes");
        fs::write(path, changed).unwrap();
    }

    /// Returns the task that creates `output`, and all its direct and indirect dependents.
    fn behind(&self, output: &str) -> BTreeSet<String> {
        let mut made = BTreeSet::from([output.to_owned()]);
        let mut tasks = BTreeSet::new();
        loop {
            let before = tasks.len();
            for task in &self.job.tasks {
                let makes = task.outputs.iter().any(|path| path == output);
                if makes || task.inputs.iter().any(|path| made.contains(path)) {
                    tasks.insert(task.id.to_string());
                    made.extend(task.outputs.iter().cloned());
                }
            }
            if tasks.len() == before {
                return tasks;
            }
        }
    }
}

fn owned(ids: Vec<&str>) -> BTreeSet<String> {
    ids.into_iter().map(str::to_owned).collect()
}

#[tokio::test]
async fn a_real_project_is_built_as_by_make_and_then_only_what_changed() {
    let farm = start(builder()).await;
    let project = Project::lua_in(farm.folder());
    let all = project.job.tasks.len();
    assert!(all > 40, "{all} tasks");

    let first = project.build(&farm).await;
    assert_eq!(first.outcome(), Outcome::Succeeded, "{:#?}", first.job());
    let counts = (first.job().tasks, first.job().succeeded, first.job().cached);
    assert_eq!(counts, (all as u64, all as u64, 0));
    let executors: BTreeSet<_> =
        first.reports.iter().map(|report| report.executor.clone().unwrap()).collect();
    assert_eq!(executors.len(), 2, "{executors:?}");
    let (ours, theirs) = (first.outputs(&farm).await, project.made());
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&ours), names(&theirs));
    let differ: Vec<_> = ours.keys().filter(|path| ours.get(*path) != theirs.get(*path)).collect();
    assert!(differ.is_empty(), "{differ:?}");

    let again = project.build(&farm).await;
    assert_eq!((again.outcome(), again.job().cached), (Outcome::Succeeded, all as u64));
    assert_eq!(again.outputs(&farm).await, ours);

    project.edit("src/lstrlib.c", |text| {
        text.replace("attempt to compare", "attempt to weigh")
            .replace("invalid capture index", "odd capture index")
    });
    let touched = project.build(&farm).await;
    assert_eq!(touched.outcome(), Outcome::Succeeded, "{:#?}", touched.job());
    assert_eq!(owned(touched.ids(|report| !report.cached)), project.behind("src/lstrlib.o"));

    // A comment changes no object: its dependents do not run again.
    project.edit("src/lmathlib.c", |text| text + "/* well */\n");
    let same = project.build(&farm).await;
    assert_eq!(same.ids(|report| !report.cached), ["src/lmathlib.o"]);

    project.edit("src/lmathlib.c", |text| text + "this is no C\n");
    let broken = project.build(&farm).await;
    assert_eq!(broken.outcome(), Outcome::Failed);
    assert_eq!(broken.ids(|report| report.status == TaskStatus::Failed), ["src/lmathlib.o"]);
    let mut behind = project.behind("src/lmathlib.o");
    behind.remove("src/lmathlib.o");
    assert_eq!(owned(broken.ids(|report| report.status == TaskStatus::Skipped)), behind);
    let rest = all - 1 - behind.len();
    assert_eq!((broken.job().succeeded, broken.job().cached), (rest as u64, rest as u64));
    let text = super::console(&farm, &broken.record.build.key()).await;
    assert!(text.contains("task src/lmathlib.o failed: exit code 1") && text.contains("no C"), "{text}");
}
