//! Real projects built in the sandbox of builds.

use std::{fs, path::PathBuf, time::Duration};

use farm::{Builder, Farm, repository};
use model::{BuildRequest, BuildRequirements, Context, Outcome};

use crate::check::{ended_within, script};

/// A wide margin for builds that take half a minute beside other tests.
const LIMIT: Duration = Duration::from_secs(110);

fn builder() -> Builder {
    let sources = serde_json::json!([repository().join(".tools/sources")]).to_string();
    Farm::builder()
        .without("gateway")
        .workspaces(2)
        .env("FOREBAY_BUILD_SANDBOX", "bubblewrap")
        .env("FOREBAY_CONTEXT_PATHS", sources)
}

fn source(name: &str) -> Context {
    let location = repository().join(".tools/sources").join(format!("{name}.tar.gz"));
    Context::Archive { location: location.display().to_string(), digest: None }
}

async fn succeeds(farm: &Farm, what: &str, request: BuildRequest) {
    let key = farm.submit("g", request).await;
    let record = ended_within(farm, &key, LIMIT).await;
    let log = farm.cli(&["logs", &key.to_string(), "--tail", "40"]).await;
    let log = format!("{}{}", log.stdout, log.stderr);
    assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{what}: {record:#?}\n{log}");
}

#[tokio::test]
async fn c_projects_build_and_pass_their_tests() {
    let farm = builder().start().await;
    for (name, text) in [
        ("zlib", "./configure && make -j2 && make test"),
        ("bzip2", "make -j2 && make test"),
        ("lua", "make -j2 posix && make test"),
    ] {
        succeeds(&farm, name, BuildRequest { context: source(name), ..script(text) }).await;
    }
}

/// Tests of a Python package: processes, threads, sockets of the loopback interface, a database, files.
const PYTHON: &str = r"
mkdir -p package tests; touch tests/__init__.py
cat > package/__init__.py <<'P'
import sqlite3, subprocess, sys
def square(n): return n * n
def child(text): return subprocess.run([sys.executable, '-c', 'print(%r)' % text], capture_output=True, text=True, check=True).stdout
def stored(rows):
    with sqlite3.connect('test.db') as base:
        base.execute('create table if not exists t (a)')
        base.executemany('insert into t values (?)', [(row,) for row in rows])
        return base.execute('select sum(a) from t').fetchone()[0]
P
cat > tests/test_package.py <<'P'
import asyncio, multiprocessing, os, socket, tempfile, threading, unittest
import package
class Package(unittest.TestCase):
    def test_processes(self):
        self.assertEqual(package.child('hello'), 'hello\n')
        with multiprocessing.Pool(3) as pool:
            self.assertEqual(pool.map(package.square, range(5)), [0, 1, 4, 9, 16])
    def test_threads(self):
        seen = []
        threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(8)]
        [t.start() for t in threads]; [t.join() for t in threads]
        self.assertEqual(sorted(seen), list(range(8)))
    def test_database_and_files(self):
        self.assertEqual(package.stored([1, 2, 3]), 6)
        with tempfile.NamedTemporaryFile() as file:
            self.assertTrue(os.path.exists(file.name))
    def test_a_server_of_its_own(self):
        async def echo():
            async def serve(reader, writer):
                writer.write(await reader.readline()); writer.close()
            server = await asyncio.start_server(serve, '127.0.0.1', 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b'x\n')
            return await reader.readline()
        self.assertEqual(asyncio.run(echo()), b'x\n')
    def test_there_is_no_network(self):
        with self.assertRaises(OSError):
            socket.create_connection(('192.0.2.1', 80), timeout=2)
P
python3 -m unittest discover -v -s tests -t .
";

#[tokio::test]
async fn a_python_package_passes_its_tests_without_a_network() {
    let farm = builder().start().await;
    let requirements = BuildRequirements([("network".to_owned(), "loopback".to_owned())].into());
    succeeds(&farm, "python", BuildRequest { requirements, ..script(PYTHON) }).await;
    // Without internet sockets at all, what needs none still works.
    let requirements = BuildRequirements([("network".to_owned(), "none".to_owned())].into());
    let text = "python3 -c 'import socket; socket.socket(socket.AF_UNIX)' && ! python3 -c 'import socket; socket.socket()' 2>/dev/null";
    succeeds(&farm, "no network", BuildRequest { requirements, ..script(text) }).await;
}

/// A crate with a vendored dependency, a build script and a test.
const CARGO: &str = r#"
set -e
mkdir -p src .cargo vendor/answer/src
cat > Cargo.toml <<'C'
[package]
name = "question"
version = "0.1.0"
edition = "2021"
[dependencies]
answer = "1"
C
cat > .cargo/config.toml <<'C'
[source.crates-io]
replace-with = "vendored"
[source.vendored]
directory = "vendor"
C
cat > vendor/answer/Cargo.toml <<'C'
[package]
name = "answer"
version = "1.0.0"
edition = "2021"
C
echo 'pub fn answer() -> u32 { 42 }' > vendor/answer/src/lib.rs
echo '{"files":{}}' > vendor/answer/.cargo-checksum.json
echo 'fn main() { println!("cargo:rustc-env=MADE=by-a-script"); }' > build.rs
cat > src/main.rs <<'C'
fn main() { println!("{} {}", answer::answer(), env!("MADE")); }
#[test]
fn it_is_right() { assert_eq!(answer::answer(), 42); }
C
cargo build --offline && cargo test --offline
[ "$(target/debug/question)" = "42 by-a-script" ]
"#;

#[tokio::test]
async fn cargo_builds_a_crate_with_vendored_dependencies() {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap();
    let folder =
        |name: &str, usual: &str| std::env::var_os(name).map_or_else(|| home.join(usual), PathBuf::from);
    let (rustup, cargo) = (folder("RUSTUP_HOME", ".rustup"), folder("CARGO_HOME", ".cargo"));
    let folders: Vec<PathBuf> =
        [rustup.clone(), cargo.join("bin")].into_iter().filter(|it| fs::metadata(it).is_ok()).collect();
    let read_only = serde_json::to_string(&folders).unwrap();
    let farm = builder().env("FOREBAY_SANDBOX_READ_ONLY", read_only).start().await;
    let mut request = script(CARGO);
    request.env.insert("RUSTUP_HOME".to_owned(), rustup.display().to_string());
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", cargo.join("bin").display());
    request.env.insert("PATH".to_owned(), path);
    succeeds(&farm, "cargo", request).await;
}
