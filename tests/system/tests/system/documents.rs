//! Every block of commands, settings and messages in README.md and docs/ is run or parsed.
//!
//! The line before a block says how, as a comment that is not rendered: `<!-- test: MODE -->`, see [`Mode`].

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use farm::{Guard, Output, Process, SOON, Up, forebay_binary, repository, with_tools};
use model::BuildRequest;
use settings::Settings;
use tempfile::TempDir;

use crate::check::until;

/// How a block is tested.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mode {
    /// Mode `shell`: each line is a command that succeeds on a farm, or exits as its comment says: `# ends with 77`.
    Shell,
    /// Mode `farm`: the lines are processes that form a farm, which runs builds and actions.
    Farm,
    /// Mode `settings`: a settings file. `settings lines`: each line is one.
    Settings { by_line: bool },
    /// Mode `job`: a job that succeeds.
    Job,
    /// Mode `request`: a build request.
    Request,
    /// Mode `json`: any JSON.
    Json,
    /// Mode `skip REASON`: the block is not tested.
    Skip,
}

#[derive(Debug)]
struct Block {
    /// File and line: `README.md:18`.
    place: String,
    mode: Mode,
    lines: Vec<String>,
}

/// Commands of blocks that other tests run, or that only end after a signal.
const ELSEWHERE: [(&str, &str); 3] = [
    ("forebay conform", "tests/conform"),
    ("forebay up --autoscale", "system/autoscale.rs"),
    ("forebay quota --watch", "it shows what changes until Ctrl-C"),
];
const LONG: Duration = Duration::from_secs(120);

fn mode(text: &str) -> Option<Mode> {
    let text = text.trim().strip_prefix("<!-- test: ")?.strip_suffix(" -->")?;
    Some(match text {
        "shell" => Mode::Shell,
        "farm" => Mode::Farm,
        "settings" => Mode::Settings { by_line: false },
        "settings lines" => Mode::Settings { by_line: true },
        "job" => Mode::Job,
        "request" => Mode::Request,
        "json" => Mode::Json,
        text => text.strip_prefix("skip ").filter(|reason| !reason.trim().is_empty()).map(|_| Mode::Skip)?,
    })
}

/// Returns the blocks of a file, and the places of those without a mode.
fn blocks(path: &Path) -> (Vec<Block>, Vec<String>) {
    let name = path.strip_prefix(repository()).unwrap().display().to_string();
    let text = fs::read_to_string(path).unwrap();
    let (mut found, mut unmarked) = (Vec::new(), Vec::new());
    let mut open: Option<Block> = None;
    let mut before = "";
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            if let Some(block) = open.take() {
                found.push(block);
            } else {
                let place = format!("{name}:{}", number + 1);
                let mode = mode(before).unwrap_or_else(|| {
                    unmarked.push(place.clone());
                    Mode::Skip
                });
                open = Some(Block { place, mode, lines: Vec::new() });
            }
        } else if let Some(block) = &mut open {
            match block.lines.last_mut().filter(|last| last.ends_with('\\')) {
                Some(last) => {
                    last.pop();
                    last.push_str(line);
                }
                None => block.lines.push(line.to_owned()),
            }
        }
        if !line.trim().is_empty() {
            before = line;
        }
    }
    (found, unmarked)
}

fn all() -> Vec<Block> {
    let mut files = vec![repository().join("README.md")];
    let docs = fs::read_dir(repository().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    files.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    files.sort();
    let (found, unmarked): (Vec<_>, Vec<_>) = files.iter().map(|path| blocks(path)).unzip();
    let unmarked = unmarked.concat();
    assert!(unmarked.is_empty(), "these blocks need a line `<!-- test: MODE -->` before them: {unmarked:?}");
    found.into_iter().flatten().collect()
}

#[test]
fn settings_and_messages_of_the_documents_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forebay.toml");
    for block in all() {
        let place = &block.place;
        let text = block.lines.join("\n");
        match &block.mode {
            Mode::Settings { by_line } => {
                let texts = if *by_line { block.lines.clone() } else { vec![text] };
                for text in texts {
                    fs::write(&file, &text).unwrap();
                    Settings::load(&file, true).unwrap_or_else(|error| panic!("{place}: {text}: {error}"));
                }
            }
            Mode::Request => {
                let read: Result<BuildRequest, _> = serde_json::from_str(&text);
                read.unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            Mode::Json => {
                let read: Result<serde_json::Value, _> = serde_json::from_str(&text);
                read.unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            Mode::Shell | Mode::Farm | Mode::Job | Mode::Skip => {}
        }
    }
}

/// A farm, and a folder with a small project in which the commands run.
struct Reader {
    up: Up,
    /// Values in the documents, and their replacements in the test.
    here: Vec<(&'static str, String)>,
    project: PathBuf,
    guard: Guard,
    folder: TempDir,
}

impl Reader {
    async fn new() -> Self {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let folder = tempfile::Builder::new().prefix("forebay-test-").permissions(open).tempdir().unwrap();
        let guard = Guard::start(folder.path());
        let types = r#"{"x86": [], "gpu": ["tag:requires-gpu"]}"#;
        let env = [("FOREBAY_SANDBOX", "none"), ("FOREBAY_EXECUTOR_TYPES", types)];
        let mut up = Up::start(folder.path(), &guard, &[], &env).await;
        let endpoints = up.endpoints().await;
        let at = |url: &str| url.split_once("://").unwrap().1.to_owned();
        let here = vec![
            ("127.0.0.1:8080", at(endpoints.http.as_deref().unwrap())),
            ("127.0.0.1:8980", at(endpoints.grpc.as_deref().unwrap())),
            ("127.0.0.1:4222", at(&endpoints.nats)),
        ];
        let project = folder.path().join("project");
        make_project(&project);
        Self { up, here, project, guard, folder }
    }

    /// Runs `bash -c LINE` in `folder`, with this program first in the path.
    fn bash(line: &str, folder: &Path) -> tokio::process::Command {
        let own = forebay_binary().parent().unwrap().to_owned();
        let path = with_tools();
        let folders = [own].into_iter().chain(std::env::split_paths(&path));
        let path = std::env::join_paths(folders).unwrap();
        let mut command = tokio::process::Command::new("bash");
        command.args(["-c", line]).current_dir(folder).env("PATH", path);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("FOREBAY_")) {
                command.env_remove(name);
            }
        }
        command.env("FOREBAY_LOAD_MAX", "0").env("FOREBAY_SANDBOX", "none");
        command
    }

    /// Returns the line with this farm's addresses and the last build's id.
    async fn translated(&self, line: &str) -> String {
        let mut line = line.to_owned();
        for (there, here) in &self.here {
            line = line.replace(there, here);
        }
        let names_one = |word: &str| word.split(['/', ' ']).any(|part| part == "ID");
        if names_one(line.split('#').next().unwrap_or_default()) {
            let client_view = self.up.cli(&["ls", "--json", "--limit", "1"]).await;
            let listed: serde_json::Value = serde_json::from_str(&client_view.stdout).unwrap();
            let id = find_id(&listed).unwrap_or_else(|| panic!("no build: {client_view:?}"));
            line = line.replace(" ID", &format!(" {id}")).replace("/ID", &format!("/{id}"));
        }
        line
    }

    async fn shell(&self, block: &Block) {
        for line in &block.lines {
            if line.trim().is_empty() || ELSEWHERE.iter().any(|(start, _)| line.starts_with(start)) {
                continue;
            }
            let line = self.translated(line).await;
            let mut command = Self::bash(&line, &self.project);
            command.env("FOREBAY_DATA", self.up.data());
            let output = tokio::time::timeout(LONG, Output::of(command)).await;
            let output = output.unwrap_or_else(|_| panic!("{}: {line}: it does not end", block.place));
            assert_eq!(output.code, exit_code(&line), "{}: {line}: {output:#?}", block.place);
        }
    }

    async fn job(&self, block: &Block) {
        let file = self.project.join("documented.yaml");
        fs::write(&file, block.lines.join("\n")).unwrap();
        let (file, project) = (file.to_str().unwrap(), self.project.to_str().unwrap());
        let output = self.up.cli(&["submit", "--follow", "--dir", project, "--job", file]).await;
        assert_eq!(output.code, 0, "{}: {output:#?}", block.place);
    }

    /// Runs the blocks of one document that form a farm, the second one for an additional machine.
    async fn farm(&self, blocks: &[&Block]) {
        let mut here: Vec<(&str, String)> = Vec::new();
        let mut processes = Vec::new();
        let folder = |number: usize| self.folder.path().join(format!("machine-{number}"));
        for (number, block) in blocks.iter().enumerate() {
            fs::create_dir_all(folder(number)).unwrap();
            let mut exports = String::new();
            for line in block.lines.iter().filter(|line| !line.trim().is_empty()) {
                let mut line = line.split(" #").next().unwrap_or_default().trim().to_owned();
                for (there, here) in &here {
                    line = line.replace(there, here);
                }
                if line.starts_with("export ") {
                    exports = format!("{exports}{line}; ");
                    continue;
                }
                if line.starts_with("forebay up") {
                    line += " --nats-port 0 --redis-port 0";
                }
                let at = folder(number);
                let log = at.join(format!("{}.log", processes.len()));
                let mut command = Self::bash(&format!("{exports}exec env {line}"), &at);
                for variable in ["HTTP_LISTEN", "GRPC_LISTEN", "METRICS_LISTEN"] {
                    command.env(format!("FOREBAY_{variable}"), "127.0.0.1:0");
                }
                processes.push(Process::start(&line, command, &log, &self.guard));
                if line.starts_with("forebay up") {
                    let written = at.join("forebay-data/endpoints.json");
                    until("the servers are up", SOON, || written.exists()).await;
                    here = addresses(&at.join("forebay-data"));
                }
                if line.contains("forebay serve") {
                    until(&line, SOON, || fs::read_to_string(&log).unwrap().contains("ready")).await;
                }
                if line.contains("serve gateway") {
                    let gateway = self.gateway(&here).await;
                    here.push(("grpc://gateway:8980", gateway));
                }
            }
            self.farm_works(&folder(0), &here).await;
        }
        for mut process in processes {
            assert!(process.try_exit().is_none(), "{} ended: {}", process.name(), process.log_tail());
        }
    }

    async fn gateway(&self, here: &[(&str, String)]) -> String {
        let nats = &here[0].1;
        let bus = bus::Bus::connect(nats, "test", bus::Patience::Wait).await.unwrap();
        let found = async {
            loop {
                if let Some(found) = bus.gateways().find("").await.unwrap() {
                    return found.grpc;
                }
            }
        };
        tokio::time::timeout(SOON, found).await.unwrap()
    }

    async fn farm_works(&self, folder: &Path, here: &[(&str, String)]) {
        let grpc = &here.iter().find(|(name, _)| name.starts_with("grpc")).unwrap().1;
        let exec = format!("forebay exec --grpc {grpc} -- echo hello");
        for line in ["forebay submit --follow -- echo hello", &exec] {
            let output = tokio::time::timeout(LONG, Output::of(Self::bash(line, folder))).await;
            let output = output.unwrap_or_else(|_| panic!("{line}: it does not end"));
            assert_eq!((output.code, output.stdout.as_str()), (0, "hello\n"), "{line}: {output:#?}");
        }
    }
}

/// Returns the exit code in the line's comment `# ends with 77`; 0 without one.
fn exit_code(line: &str) -> i32 {
    let said = line.split_once("# ends with ").map(|(_, rest)| rest);
    let digits = said.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Addresses of the first machine's servers in the documents.
fn addresses(data: &Path) -> Vec<(&'static str, String)> {
    let text = fs::read(data.join("endpoints.json")).unwrap();
    let endpoints: model::Endpoints = serde_json::from_slice(&text).unwrap();
    vec![("nats://bus:4222", endpoints.nats), ("redis://index:6379", endpoints.redis)]
}

/// Returns the first `id` in a list.
fn find_id(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::Object(fields) => match fields.get("id").and_then(|id| id.as_str()) {
            Some(id) => Some(id.to_owned()),
            None => fields.values().find_map(find_id),
        },
        serde_json::Value::Array(items) => items.iter().find_map(find_id),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => None,
    }
}

/// Creates the files that the commands of the documents expect in the current folder.
fn make_project(folder: &Path) {
    let files = [
        (
            "Makefile",
            "program: a.o b.o\n\tgcc -o program a.o b.o\na.o: a.c include/x.h\n\tgcc -c a.c -o a.o\n\
          b.o: b.c include/x.h\n\tgcc -c b.c -o b.o\ntest:\n\tmkdir -p target && echo tested > target/test.log\n.PHONY: test\n",
        ),
        ("a.c", "#include \"include/x.h\"\nint main(void) { return zero(); }\n"),
        ("b.c", "#include \"include/x.h\"\nint zero(void) { return 0; }\n"),
        ("include/x.h", "int zero(void);\n"),
        ("src/Makefile", "all:\n\tmkdir -p out ../out && echo made > out/made && cp out/made ../out/made\n"),
        ("quotas.yaml", "ci: {x86: 500, gpu: 20}\n\"*\": {x86: 10}\n"),
    ];
    for (name, content) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    std::os::unix::fs::symlink(repository().join("examples"), folder.join("examples")).unwrap();
}

#[tokio::test]
async fn commands_of_the_documents_do_what_they_should() {
    let reader = Reader::new().await;
    let all = all();
    for block in &all {
        match block.mode {
            Mode::Shell => reader.shell(block).await,
            Mode::Job => reader.job(block).await,
            Mode::Farm | Mode::Settings { .. } | Mode::Request | Mode::Json | Mode::Skip => {}
        }
    }
    let farm: Vec<&Block> = all.iter().filter(|block| block.mode == Mode::Farm).collect();
    assert!(!farm.is_empty(), "README says how a farm is made of single services");
    reader.farm(&farm).await;
}
