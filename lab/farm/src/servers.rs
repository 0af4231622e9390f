//! A test's own nats-server (one, or a cluster) and redis-server.

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bus::{Bus, Patience};
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use settings::Settings;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    Guard, Port, Process, SOON, SmallDisk,
    process::tail,
    secured::{Secured, TEST_USER},
    tool,
    topology::ensure_topology,
    traffic,
};

/// The servers, and the folder with all files of a test.
#[derive(Debug)]
pub struct Servers {
    nodes: Vec<Node>,
    redis: Mutex<Option<Process>>,
    redis_port: Port,
    /// Port of Redis with TLS, of secured servers.
    redis_tls_port: Port,
    /// Keys and certificates, if the servers are secured.
    secured: Option<Secured>,
    guard: Guard,
    folder: TempDir,
}

#[derive(Debug)]
struct Node {
    client: Port,
    monitor: Port,
    route: Port,
    process: Mutex<Option<Process>>,
    /// Disk for the streams, if separate from the disk of the test.
    disk: Option<SmallDisk>,
}

impl Servers {
    /// Starts one nats-server with JetStream, and a Redis without persistence.
    pub async fn start() -> Self {
        Self::start_cluster(1, None).await
    }

    /// Starts a cluster of `count` nats-servers, each with a disk of `megabytes` for its streams if
    /// given, and a Redis.
    pub async fn start_cluster(count: usize, megabytes: Option<u32>) -> Self {
        let mut servers = Self::prepare(count);
        if let Some(megabytes) = megabytes {
            (0..count).for_each(|node| servers.mount_disk(node, megabytes));
        }
        for node in 0..count {
            servers.spawn_node(node);
        }
        servers.spawn_redis();
        for node in 0..count {
            servers.node_answers(node).await;
        }
        servers.redis_answers().await;
        servers
    }

    /// Reserves ports and creates a folder without starting any server.
    pub fn prepare(count: usize) -> Self {
        // Readable by the user that actions run as.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let folder = tempfile::Builder::new().prefix("forebay-test-").permissions(open).tempdir();
        let folder = folder.expect("a temporary folder");
        fs::create_dir(folder.path().join("logs")).expect("the folder of logs");
        let guard = Guard::start(folder.path());
        let node = |_| Node {
            client: Port::reserve(),
            monitor: Port::reserve(),
            route: Port::reserve(),
            process: Mutex::default(),
            disk: None,
        };
        let nodes: Vec<Node> = (0..count).map(node).collect();
        let secured = Secured::if_asked(folder.path());
        let (redis_port, redis_tls_port) = (Port::reserve(), Port::reserve());
        let servers =
            Self { nodes, redis: Mutex::default(), redis_port, redis_tls_port, secured, guard, folder };
        (0..count).for_each(|node| servers.write_config(node));
        servers
    }

    /// Creates all streams and consumers on the running servers.
    pub async fn create_streams(&self) {
        let bus = Bus::connect(&self.nats_url(), "test", Patience::Wait).await.expect("a valid URL");
        ensure_topology(&bus, &Settings::default().topology()).await;
    }

    /// URL of every node for tests, separated by commas: `nats://127.0.0.1:PORT`, with a user if the servers are secured.
    pub fn nats_url(&self) -> String {
        self.nats_urls(&format!("nats://{}", self.test_user()))
    }

    fn nats_urls(&self, start: &str) -> String {
        let url = |node: &Node| format!("{start}127.0.0.1:{}", node.client.number());
        self.nodes.iter().map(url).collect::<Vec<_>>().join(",")
    }

    /// URL of Redis for tests: `redis://127.0.0.1:PORT`, with a user if the servers are secured.
    pub fn redis_url(&self) -> String {
        format!("redis://{}127.0.0.1:{}", self.test_user(), self.redis_port.number())
    }

    /// How messages name the first nats-server: without a scheme and a user.
    pub fn nats_address(&self) -> String {
        format!("127.0.0.1:{}", self.nats_port(0))
    }

    /// How messages name Redis.
    pub fn redis_address(&self) -> String {
        format!("127.0.0.1:{}", self.redis_port.number())
    }

    fn test_user(&self) -> String {
        self.secured.as_ref().map_or_else(String::new, |_| format!("{TEST_USER}:{TEST_USER}@"))
    }

    /// Settings of the farm's own processes: the URLs of both servers, and keys if these are secured.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        let Some(secured) = &self.secured else {
            return vec![("FOREBAY_NATS_URL", self.nats_url()), ("FOREBAY_REDIS_URL", self.redis_url())];
        };
        let redis = format!("rediss://127.0.0.1:{}", self.redis_tls_port.number());
        let urls = [("FOREBAY_NATS_URL", self.nats_urls("tls://")), ("FOREBAY_REDIS_URL", redis)];
        let files = secured.env().into_iter().map(|(name, path)| (name, path.display().to_string()));
        urls.into_iter().chain(files).collect()
    }

    /// Address of the monitoring pages of a node.
    pub fn monitor_address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.node(node).monitor.number())
    }

    /// Folder with all files of this test.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Guard that kills and removes everything at the end.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Sends SIGKILL to nats-server, and waits until it has ended.
    pub fn kill_nats(&self) {
        (0..self.count()).for_each(|node| self.kill_node(node));
    }

    /// Sends a signal to all nodes of nats-server.
    pub fn signal_nats(&self, signal: Signal) {
        for node in 0..self.count() {
            if let Some(process) = &*self.node(node).process.lock() {
                process.signal(signal);
            }
        }
    }

    /// Starts nats-server again, on the same port and data.
    pub async fn start_nats(&self) {
        for node in 0..self.count() {
            self.spawn_node(node);
        }
        for node in 0..self.count() {
            self.node_answers(node).await;
        }
    }

    /// Sends SIGKILL to one node of the cluster.
    pub fn kill_node(&self, node: usize) {
        // A process is killed when it is dropped.
        drop(self.node(node).process.lock().take());
    }

    /// Starts one node again.
    pub async fn start_node(&self, node: usize) {
        self.spawn_node(node);
        self.node_answers(node).await;
    }

    /// Sends SIGKILL to Redis, and waits until it has ended.
    pub fn kill_redis(&self) {
        // A process is killed when it is dropped.
        drop(self.redis.lock().take());
    }

    /// Starts Redis again, empty, on the same port.
    pub async fn start_redis(&self) {
        self.spawn_redis();
        self.redis_answers().await;
    }

    /// Deletes all data in Redis.
    pub fn flush_redis(&self) {
        let answer = self.ask_redis("FLUSHALL");
        assert_eq!(answer.as_deref(), Some("+OK\r\n"), "FLUSHALL");
    }

    /// Gives every client of Redis the rights of these rules of an access control list, and that to delete all data.
    pub fn limit_redis(&self, rules: &str) {
        // Users of secured servers have these rights only.
        if self.secured.is_none() {
            let answer = self.ask_redis(&format!("ACL SETUSER default {rules} +flushall"));
            assert_eq!(answer.as_deref(), Some("+OK\r\n"), "ACL SETUSER");
        }
    }

    /// Sends a command to Redis, and returns the first line of its answer.
    fn ask_redis(&self, command: &str) -> Option<String> {
        let port = self.redis_port.number();
        if self.secured.is_none() {
            return first_line(port, &format!("{command}\r\n"));
        }
        let both = format!("AUTH {TEST_USER} {TEST_USER}\r\n{command}\r\n");
        lines(port, &both, 2)?.pop()
    }

    /// Port of a node.
    pub fn nats_port(&self, node: usize) -> u16 {
        self.node(node).client.number()
    }

    /// Process id of Redis, while it runs.
    pub fn redis_pid(&self) -> Option<u32> {
        self.redis.lock().as_ref().map(Process::pid)
    }

    /// Process id of a nats-server, while it runs.
    pub fn nats_pid(&self, node: usize) -> Option<u32> {
        self.node(node).process.lock().as_ref().map(Process::pid)
    }

    /// Separate disk of a nats-server, if it has one.
    pub fn disk(&self, node: usize) -> Option<&SmallDisk> {
        self.node(node).disk.as_ref()
    }

    fn mount_disk(&mut self, number: usize, megabytes: u32) {
        let path = self.streams_folder(number);
        fs::create_dir_all(&path).expect("the folder of streams");
        let node = self.nodes.get_mut(number).expect("a node of the cluster");
        node.disk = SmallDisk::mount_at(&path, megabytes);
    }

    fn node(&self, node: usize) -> &Node {
        self.nodes.get(node).expect("a node of the cluster")
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join("logs").join(format!("{name}.log"))
    }

    fn node_folder(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("nats-{node}"))
    }

    fn streams_folder(&self, node: usize) -> PathBuf {
        self.node_folder(node).join("streams")
    }

    fn write_config(&self, number: usize) {
        let node = self.node(number);
        let folder = self.node_folder(number);
        fs::create_dir_all(&folder).expect("the folder of nats-server");
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "server_name: node-{number}");
        let _ = writeln!(text, "listen: \"127.0.0.1:{}\"", node.client.number());
        let _ = writeln!(text, "http: \"127.0.0.1:{}\"", node.monitor.number());
        let _ = writeln!(text, "jetstream {{ store_dir: \"{}\" }}", self.streams_folder(number).display());
        if self.count() > 1 {
            let routes = self.nodes.iter().map(|node| format!("nats://127.0.0.1:{}", node.route.number()));
            let routes = routes.collect::<Vec<_>>().join(", ");
            let listen = format!("127.0.0.1:{}", node.route.number());
            let _ = writeln!(text, "cluster {{ name: test, listen: \"{listen}\", routes: [{routes}] }}");
        }
        if let Some(secured) = &self.secured {
            text.push_str(&secured.nats_lines(&folder));
        }
        text.push_str(&traffic::config_lines(&traffic::log_of(self.folder.path(), number)));
        fs::write(folder.join("nats.conf"), text).expect("the configuration of nats-server");
    }

    /// Starts a nats-server without waiting for it.
    pub fn spawn_node(&self, number: usize) {
        let name = format!("nats-{number}");
        let mut command = Command::new(tool("nats-server"));
        command.arg("--config").arg(self.node_folder(number).join("nats.conf"));
        let process = Process::start(&name, command, &self.log(&name), &self.guard);
        *self.node(number).process.lock() = Some(process);
    }

    fn spawn_redis(&self) {
        let port = self.redis_port.number().to_string();
        let mut command = Command::new(tool("redis-server"));
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(self.folder.path());
        if let Some(secured) = &self.secured {
            command.args(secured.redis_args(self.redis_tls_port.number()));
        }
        let process = Process::start("redis", command, &self.log("redis"), &self.guard);
        *self.redis.lock() = Some(process);
    }

    async fn node_answers(&self, node: usize) {
        let port = self.node(node).client.number();
        until(|| first_line(port, "").is_some_and(|line| line.starts_with("INFO ")), "nats-server").await;
    }

    async fn redis_answers(&self) {
        until(|| self.ask_redis("PING").is_some_and(|line| line == "+PONG\r\n"), "redis-server").await;
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        traffic::record((0..self.count()).map(|node| traffic::log_of(self.folder.path(), node)));
        if std::thread::panicking() {
            let logs = fs::read_dir(self.folder.path().join("logs")).into_iter().flatten().flatten();
            logs.for_each(|log| eprint!("{}", tail(&log.path())));
        }
        if std::env::var_os("FOREBAY_KEEP").is_some() {
            eprintln!("kept: {}", self.folder.path().display());
            self.folder.disable_cleanup(true);
        }
    }
}

/// Sends `question` to a server on this machine, and returns the first line of its answer.
pub(crate) fn first_line(port: u16, question: &str) -> Option<String> {
    lines(port, question, 1)?.pop()
}

/// The same with the first `count` lines.
fn lines(port: u16, question: &str, count: usize) -> Option<Vec<String>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    stream.write_all(question.as_bytes()).ok()?;
    let mut answers = BufReader::new(stream);
    let mut found = Vec::new();
    for _ in 0..count {
        let mut line = String::new();
        answers.read_line(&mut line).ok()?;
        found.push(line);
    }
    Some(found)
}

pub(crate) async fn until(condition: impl Fn() -> bool, what: &str) {
    let deadline = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} does not answer");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
