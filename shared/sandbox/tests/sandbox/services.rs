//! Services beside a command: who reaches them, when they count as ready, and what ends them.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::{chown, geteuid};
use sandbox::{
    Cause, Deadline, Probe, Readiness, Run, Service, ServiceFault, Services, SharedNetwork, Slot, SlotConfig,
    StopMode,
};

use crate::support::{Place, USER, Way, host};

/// A server that says what it has on port 7000 of all addresses, and its own name.
const SERVER: &str = "import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == '/ready' else 404)
        self.end_headers()
        self.wfile.write(sys.argv[1].encode())
print('starts', flush=True)
http.server.HTTPServer(('', 7000), Handler).serve_forever()";

/// A place with a network for its command and services.
struct Together {
    place: Place,
    network: SharedNetwork,
}

impl Together {
    /// The names of one service.
    async fn new(names: &[&str]) -> Self {
        Self::of_services(&[names]).await
    }

    /// The names of each service.
    async fn of_services(all: &[&[&str]]) -> Self {
        let place = Place::new(Way::Kept);
        let hosts: Vec<Vec<String>> =
            all.iter().map(|names| names.iter().map(|&name| name.to_owned()).collect()).collect();
        let folder = place.path("names");
        fs::create_dir(&folder).unwrap();
        let network = SharedNetwork::create(host(), &folder, &hosts).await.unwrap();
        Self { place, network }
    }

    fn service(&self, name: &str, argv: &[&str], ready: Readiness) -> Service {
        self.service_number(0, name, argv, ready)
    }

    fn service_number(&self, number: usize, name: &str, argv: &[&str], ready: Readiness) -> Service {
        let work = self.place.path(name);
        let root = work.join("root");
        fs::create_dir_all(&root).unwrap();
        if geteuid().is_root() {
            chown(&root, Some(USER.uid.into()), Some(USER.gid.into())).unwrap();
        }
        let config = self.place.config();
        let of_service = |stream: &str| self.place.path(&format!("{name}-{stream}"));
        Service {
            name: name.to_owned(),
            slot: SlotConfig { work, ..config },
            network: self.network.of_service(number),
            run: Run {
                root,
                stdout: of_service("stdout"),
                stderr: of_service("stderr"),
                timeout: None,
                ..self.place.run(argv)
            },
            after: Vec::new(),
            ready,
            ready_within: Duration::from_secs(30),
            stop_grace: Duration::from_secs(5),
        }
    }

    fn server(&self, name: &str) -> Service {
        let ready = Readiness::Answers(Probe::Http { port: 7000, path: "/ready".to_owned() });
        self.service(name, &["/usr/bin/python3", "-c", SERVER, name], ready)
    }

    /// The slot of the command.
    async fn slot(&self) -> Slot {
        let network = Some(self.network.clone());
        Slot::start(SlotConfig { network, ..self.place.config() }).await.unwrap()
    }

    async fn output(&self, script: &str) -> String {
        let mut slot = self.slot().await;
        let ended = self.place.ended(&mut slot, self.place.run(&["/usr/bin/python3", "-c", script])).await;
        assert_eq!(ended.exit_code, 0, "{}", self.place.stderr());
        self.place.stdout()
    }
}

/// Asks a server by its name.
fn ask(name: &str) -> String {
    format!(
        "import urllib.request as r, urllib.error as e
try:
    print(r.urlopen('http://{name}:7000/ready').read().decode(), end='')
except e.URLError as error:
    print('no answer', end='')"
    )
}

#[tokio::test]
async fn a_command_reaches_its_services_by_name_and_nothing_else() {
    let together = Together::new(&["db", "database"]).await;
    let mut services = Services::of(vec![together.server("db")]);
    services.ready().await.unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let outside = listener.local_addr().unwrap().port();
    for name in ["db", "database", "localhost", "127.0.0.1"] {
        assert_eq!(together.output(&ask(name)).await, "db", "{name}");
    }
    let interfaces = together.output("print(open('/proc/net/dev').read())").await;
    assert_eq!(interfaces.lines().filter(|line| line.contains(':')).count(), 1, "{interfaces}");
    let script =
        format!("import socket; print(socket.socket().connect_ex(('127.0.0.1', {outside})), end='')");
    assert_eq!(together.output(&script).await, "111", "a server of the machine is refused");
    assert!(TcpStream::connect("127.0.0.1:7000").is_err(), "the machine reaches the service");
    let ends = services.stop(StopMode::Gently).await;
    assert!(ends.iter().all(|end| end.fault.is_none() && end.ended.is_some()), "{ends:?}");
    let log = fs::read_to_string(together.place.path("db-stdout")).unwrap();
    assert_eq!(log, "starts\n");
}

#[tokio::test]
async fn many_have_the_same_port_at_once() {
    let mut all = Vec::new();
    for number in 0..8 {
        let together = Together::new(&["db"]).await;
        let name = format!("db{number}");
        let services = Services::of(vec![together.server(&name)]);
        all.push((name, together, services));
    }
    futures::future::join_all(
        all.iter_mut().map(|(_, _, services)| async { services.ready().await.unwrap() }),
    )
    .await;
    for (name, together, _) in &all {
        assert_eq!(together.output(&ask("db")).await, *name);
    }
}

/// A server that says what it has on port 7000 of its own `localhost` only.
const LOCAL_SERVER: &str = "import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[1].encode())
http.server.HTTPServer(('localhost', 7000), Handler).serve_forever()";

#[tokio::test]
async fn services_that_listen_on_their_own_address_have_the_same_port() {
    let together = Together::of_services(&[&["one"], &["two"], &["three"]]).await;
    let server = |number: usize, name: &str| {
        let ready = Readiness::Answers(Probe::Http { port: 7000, path: "/ready".to_owned() });
        let argv = ["/usr/bin/python3", "-c", LOCAL_SERVER, name];
        together.service_number(number, name, &argv, ready)
    };
    let names = ["one", "two", "three"];
    let all = names.into_iter().enumerate().map(|(number, name)| server(number, name));
    let mut services = Services::of(all.collect());
    services.ready().await.unwrap();
    for name in names {
        assert_eq!(together.output(&ask(name)).await, name);
    }
    assert_eq!(together.output(&ask("localhost")).await, "one", "the first has the address of the machine");
}

#[tokio::test]
async fn a_check_is_not_answered_by_a_service_that_listens_elsewhere() {
    let together = Together::of_services(&[&["one"], &["two"]]).await;
    let port = || Readiness::Answers(Probe::Tcp(7000));
    let argv = ["/usr/bin/python3", "-c", LOCAL_SERVER, "one"];
    let one = together.service_number(0, "one", &argv, port());
    let silent = together.service_number(1, "two", &["/bin/sleep", "1000"], port());
    let two = Service { after: vec!["one".to_owned()], ready_within: Duration::from_millis(500), ..silent };
    let mut services = Services::of(vec![one, two]);
    let fault = services.ready().await.unwrap_err().to_string();
    assert!(fault.contains("two was not ready") && fault.ends_with("of 127.0.0.2"), "{fault}");
}

#[tokio::test]
async fn a_lease_that_is_not_renewed_ends_a_service() {
    let together = Together::new(&["db"]).await;
    let lease = tokio::sync::watch::Sender::new(Deadline::after(Duration::from_secs(600)));
    let mut service = together.service("db", &["/bin/sleep", "1000"], Readiness::Started);
    service.slot.lease = Some(lease.subscribe());
    let mut services = Services::of(vec![service]);
    services.ready().await.unwrap();
    lease.send_replace(Deadline::after(Duration::from_millis(100)));
    let fault = services.fault().await;
    assert!(matches!(fault, ServiceFault::Ended { cause: Cause::Deadline, .. }), "{fault:?}");
}

#[tokio::test]
async fn a_service_starts_when_those_before_it_are_ready() {
    let together = Together::new(&["db", "app"]).await;
    let check =
        "import urllib.request as r; r.urlopen('http://db:7000/ready'); import time; time.sleep(1000)";
    let mut app = together.service("app", &["/usr/bin/python3", "-c", check], Readiness::Started);
    app.after = vec!["db".to_owned()];
    let mut services = Services::of(vec![together.server("db"), app]);
    services.ready().await.unwrap();
    let fault = tokio::time::timeout(Duration::from_millis(500), services.fault()).await;
    assert!(fault.is_err(), "it found the server: {fault:?}");
}

#[tokio::test]
async fn a_command_can_say_that_a_service_is_ready() {
    let together = Together::new(&[]).await;
    let service = "sleep 0.3; touch ready; exec sleep 1000";
    let ready = Readiness::Command(["/usr/bin/test", "-e", "ready"].map(str::to_owned).to_vec());
    let service = together.service("db", &["/bin/sh", "-c", service], ready);
    let mut services = Services::of(vec![service]);
    services.ready().await.unwrap();
    assert!(together.place.path("db/root/ready").exists());
}

async fn fault_of(service: Service) -> ServiceFault {
    let mut services = Services::of(vec![service]);
    let fault = match services.ready().await {
        Ok(()) => services.fault().await,
        Err(fault) => fault,
    };
    let ends = services.stop(StopMode::Gently).await;
    assert_eq!(ends.len(), 1, "it ended once");
    fault
}

#[tokio::test]
async fn what_keeps_a_service_from_serving_is_named() {
    let together = Together::new(&[]).await;
    let port = || Readiness::Answers(Probe::Tcp(7000));
    let service = |name: &str, script: &str, ready| together.service(name, &["/bin/sh", "-c", script], ready);
    let fault = fault_of(service("one", "exit 3", port())).await.to_string();
    assert_eq!(fault, "the service one ended with exit code 3");
    let fault = fault_of(service("two", "sleep 0.1", Readiness::Started)).await.to_string();
    assert_eq!(fault, "the service two ended with exit code 0");
    let late = Service { ready_within: Duration::from_millis(300), ..service("three", "sleep 1000", port()) };
    let fault = fault_of(late).await.to_string();
    assert_eq!(
        fault,
        "the service three was not ready within 0.3 s: it counts as ready when it accepts connections on port 7000 of 127.0.0.1"
    );
    let fault = fault_of(together.service("four", &["/no/program"], port())).await.to_string();
    assert!(fault.starts_with("the service four cannot be started: "), "{fault}");
    let check = Readiness::Command(vec!["/no/check".to_owned()]);
    let fault = fault_of(service("six", "sleep 1000", check)).await.to_string();
    assert!(
        fault.starts_with("the command that says whether the service six is ready cannot be started"),
        "{fault}"
    );
    let limits = sandbox::Limits { cpu: Some(Duration::from_millis(200)), ..sandbox::Limits::default() };
    let mut busy = service("five", "while :; do :; done", port());
    busy.run.limits = limits;
    let fault = fault_of(busy).await.to_string();
    assert!(fault.contains("of 200 ms of processor time"), "{fault}");
}

#[tokio::test]
async fn services_that_heed_no_request_are_killed_and_none_outlives_its_owner() {
    let together = Together::new(&[]).await;
    let stubborn = "trap '' TERM; touch runs; while :; do sleep 0.1; done";
    let check = Readiness::Command(["/usr/bin/test", "-e", "runs"].map(str::to_owned).to_vec());
    let stubborn = Service {
        stop_grace: Duration::from_millis(200),
        ..together.service("one", &["/bin/sh", "-c", stubborn], check.clone())
    };
    let mut services = Services::of(vec![stubborn.clone()]);
    services.ready().await.unwrap();
    let ends = services.stop(StopMode::Gently).await;
    assert_eq!(ends[0].ended.as_ref().map(|ended| ended.exit_code), Some(137));
    fs::remove_file(together.place.path("one/root/runs")).unwrap();
    // A dropped owner is enough.
    let marker = format!("1000.{}", std::process::id());
    let script = format!("touch runs; exec sleep {marker}");
    let service = together.service("two", &["/bin/sh", "-c", &script], check);
    let mut services = Services::of(vec![service]);
    services.ready().await.unwrap();
    let becomes = async |running: bool| {
        for _ in 0..1000 {
            if is_running(&marker) == running {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    };
    assert!(becomes(true).await, "the service does not run");
    drop(services);
    assert!(becomes(false).await, "the service outlives its owner");
}

/// Whether a process has this argument.
fn is_running(argument: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("cmdline"));
    let has = |path: PathBuf| {
        let line = fs::read(path).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|part| part == argument.as_bytes())
    };
    processes.into_iter().any(has)
}
