//! Farms of `forebay up --secure`: only those who have a key use their servers.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use credentials::{Credentials, Server};
use farm::{Guard, Output, SOON, Up, bare_command};
use model::{BuildId, BuildRequest, Endpoints, Outcome};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Child,
};
use tonic::{
    metadata::MetadataMap,
    transport::{Certificate, ClientTlsConfig, Endpoint},
};

use crate::{
    locked::{Calls, http_trusting},
    python::python,
};

pub(crate) struct Secured {
    pub(crate) up: Up,
    guard: Guard,
    folder: TempDir,
}

impl Secured {
    pub(crate) async fn start(args: &[&str]) -> Self {
        let open = fs::Permissions::from_mode(0o755);
        let folder = tempfile::Builder::new().prefix("forebay-test-").permissions(open).tempdir().unwrap();
        let guard = Guard::start(folder.path());
        let args: Vec<&str> = ["--secure"].into_iter().chain(args.iter().copied()).collect();
        let up = Up::start(folder.path(), &guard, &args, &[]).await;
        Self { up, guard, folder }
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.up.data().join("secure").join(name).display().to_string()
    }

    /// Runs `forebay access` for this farm.
    pub(crate) async fn access(&self, words: &[&str]) {
        let words: Vec<&str> = ["access"].into_iter().chain(words.iter().copied()).collect();
        let output = self.up.cli(&words).await;
        assert_eq!(output.code, 0, "{words:?}: {output:?}");
    }

    /// Adds a tenant with one group of its name, and a publisher `ci`.
    pub(crate) async fn add_tenant(&self, name: &str) {
        self.access(&["grant", "tenant", name, "--group", name]).await;
        self.access(&["grant", "publisher", &format!("{name}/ci")]).await;
        self.access(&["apply"]).await;
    }

    /// A connection to nats-server with the key of the publisher `ci` of a tenant.
    pub(crate) async fn connect_as(&mut self, tenant: &str) -> async_nats::Client {
        self.connect(&format!("{tenant}.ci")).await
    }

    /// A connection to nats-server with the key of this user.
    pub(crate) async fn connect(&mut self, user: &str) -> async_nats::Client {
        let nats = self.endpoints().await.nats;
        let seed = fs::read_to_string(self.file(&format!("seeds/{user}.seed"))).unwrap();
        async_nats::ConnectOptions::with_nkey(seed.trim().to_owned())
            .custom_inbox_prefix(format!("_INBOX_{user}"))
            .add_root_certificates(self.file("ca.pem").into())
            .request_timeout(Some(Duration::from_millis(300)))
            .connect(&nats)
            .await
            .unwrap()
    }

    /// An HTTP client that trusts the farm, and the address of its gateway.
    pub(crate) async fn http(&mut self) -> (reqwest::Client, String) {
        let client = http_trusting(&fs::read_to_string(self.file("ca.pem")).unwrap());
        (client, self.endpoints().await.http.unwrap())
    }

    /// Calls of its gateway with an API key.
    pub(crate) async fn calls(&mut self, key: &str) -> Calls {
        let url = self.endpoints().await.grpc.unwrap().replacen("grpcs://", "https://", 1);
        let authority = Certificate::from_pem(fs::read(self.file("ca.pem")).unwrap());
        let tls = ClientTlsConfig::new().ca_certificate(authority);
        let channel = Endpoint::from_shared(url).unwrap().tls_config(tls).unwrap().connect().await.unwrap();
        let mut headers = MetadataMap::new();
        headers.insert("authorization", format!("Bearer {}", key.trim()).parse().unwrap());
        Calls { channel, headers }
    }

    /// The API key of its operator.
    pub(crate) fn operator_key(&self) -> String {
        fs::read_to_string(self.file("operator.token")).unwrap().trim().to_owned()
    }

    /// Makes an API key with these fields of a rule.
    pub(crate) async fn new_key(&self, name: &str, fields: &str) -> String {
        let rules = self.file("rules.toml");
        let made = self.up.cli(&["credential", "new", name, "--rules", &rules]).await;
        assert_eq!(made.code, 0, "{made:?}");
        let text = fs::read_to_string(&rules).unwrap();
        fs::write(&rules, format!("{text}\n[[rules]]\nkey = \"{name}\"\n{fields}\n")).unwrap();
        made.stdout.trim().to_owned()
    }

    pub(crate) async fn endpoints(&mut self) -> Endpoints {
        self.up.endpoints().await
    }
}

#[tokio::test]
async fn commands_on_its_machine_use_a_secured_farm_as_any_other() {
    let mut farm = Secured::start(&[]).await;
    let output = farm.up.cli(&["submit", "--follow", "--", "sh", "-c", "echo from the build"]).await;
    assert!(output.code == 0 && output.stdout.contains("from the build"), "{output:?}");
    let output = farm.up.cli(&["exec", "--", "true"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    for words in
        [&["ls"][..], &["workers"], &["executors"], &["quota"], &["topology", "--check"], &["env", "list"]]
    {
        let output = farm.up.cli(words).await;
        assert_eq!(output.code, 0, "{words:?}: {output:?}");
    }
    let output = farm.up.cli(&["doctor"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(
        !output.stdout.contains("warn") && output.stdout.contains("only those who have a key"),
        "{output:?}"
    );
    // The keys outlive the farm, so that clients need no new ones.
    let (before, key) =
        (fs::read(farm.file("ca.pem")).unwrap(), fs::read(farm.file("operator.token")).unwrap());
    farm.up.stop().await;
    let Secured { up, guard, folder } = farm;
    // It ends what is left in its folder, before the next one starts there.
    drop(up);
    let up = Up::start(folder.path(), &guard, &["--secure"], &[]).await;
    let farm = Secured { up, guard, folder };
    assert_eq!(fs::read(farm.file("ca.pem")).unwrap(), before);
    assert_eq!(fs::read(farm.file("operator.token")).unwrap(), key);
    let output = farm.up.cli(&["ls", "--json"]).await;
    assert!(output.code == 0 && output.stdout.to_lowercase().contains("succeeded"), "{output:?}");
}

#[tokio::test]
async fn n1_strangers_reach_no_server_of_a_secured_farm() {
    let mut farm = Secured::start(&[]).await;
    let endpoints = farm.endpoints().await;
    let known = Server::nats_of(&endpoints).credentials;
    // With the authority, and without a key; with a key of another farm; without TLS.
    let without_key = Credentials { seed: None, ..known.clone() };
    let server = Server { url: endpoints.nats.clone(), credentials: without_key.clone() };
    let refused = bus::Bus::connect(&server, "stranger", bus::Patience::None).await.unwrap_err();
    assert!(format!("{refused:?}").to_lowercase().contains("authorization"), "{refused:?}");
    let other = Secured::start(&["--no-services"]).await;
    let foreign =
        Credentials { seed: Some(other.file("seeds/operator.operator-1.seed").into()), ..known.clone() };
    let server = Server { url: endpoints.nats.clone(), credentials: foreign };
    assert!(bus::Bus::connect(&server, "stranger", bus::Patience::None).await.is_err());
    let plain = endpoints.nats.replace("tls://", "nats://");
    assert!(bus::Bus::connect(plain.as_str(), "stranger", bus::Patience::None).await.is_err());
    // Redis needs a certificate of the farm, and a key.
    let redis = |credentials| Server { url: endpoints.redis.clone(), credentials };
    // Without a key the connection has no rights, not even to be named.
    let stranger = index::Index::connect(redis(without_key), false).await.unwrap();
    let refused = format!("{:?}", stranger.health().await.unwrap_err());
    assert!(refused.contains("Authentication required"), "{refused}");
    assert!(index::Index::connect(redis(Credentials::default()), false).await.is_err());
    index::Index::connect(redis(known), false).await.unwrap().health().await.unwrap();
    // HTTP, gRPC and metrics.
    let authority = reqwest::Certificate::from_pem(&fs::read(farm.file("ca.pem")).unwrap()).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([authority]).build().unwrap();
    let http = endpoints.http.clone().unwrap();
    let status = client.get(format!("{http}/v1/builds")).send().await.unwrap().status();
    assert_eq!(status.as_u16(), 401);
    let metrics = endpoints.metrics.get("enqueuer").unwrap();
    assert!(metrics.starts_with("https://"), "{metrics}");
    assert_eq!(client.get(metrics).send().await.unwrap().status().as_u16(), 403);
    let health = metrics.replace("/metrics", "/healthz");
    assert_eq!(client.get(health).send().await.unwrap().status().as_u16(), 200);
    let plain = reqwest::get(format!("{}/v1/builds", http.replace("https:", "http:"))).await;
    assert!(plain.is_err(), "{plain:?}");
}

#[tokio::test]
async fn nothing_of_a_secured_farm_can_be_read_by_other_users_of_the_machine() {
    let farm = Secured::start(&["--no-services"]).await;
    for name in ["archive", "cas", "logs"] {
        let mode = fs::metadata(farm.up.data().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "{name}");
    }
    let mut folders = vec![farm.up.data().join("secure")];
    while let Some(folder) = folders.pop() {
        let mode = fs::metadata(&folder).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "{}", folder.display());
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
                assert_eq!(mode, 0o600, "{}", entry.path().display());
            }
        }
    }
}

#[tokio::test]
async fn a_tenant_is_added_to_a_running_farm_and_is_out_within_seconds_when_it_is_revoked() {
    let mut farm = Secured::start(&[]).await;
    let endpoints = farm.endpoints().await;
    farm.access(&["grant", "tenant", "payments", "--group", "payments", "--priority", "batch"]).await;
    farm.access(&["grant", "publisher", "payments/ci"]).await;
    farm.access(&["apply"]).await;
    let mut client = python("tests/system/python/tenant.py");
    client.args([&endpoints.nats, &farm.file("ca.pem"), &farm.file("seeds/payments.ci.seed")]);
    client.args(["_INBOX_payments.ci", "payments"]).stdout(Stdio::piped()).kill_on_drop(true);
    let mut client = client.spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(SOON, lines.next_line()).await.unwrap().unwrap();
    assert_eq!(line.as_deref(), Some("succeeded"));
    let line = tokio::time::timeout(SOON, lines.next_line()).await.unwrap().unwrap();
    assert!(line.as_deref().is_some_and(|line| line.ends_with(" events")), "{line:?}");
    // Clients have copies of their keys.
    fs::copy(farm.file("seeds/payments.ci.seed"), farm.folder.path().join("payments.ci.seed")).unwrap();
    let (submit, queued) = following(&farm, &endpoints).await;
    assert!(queued.contains("in group payments"), "{queued}");
    farm.access(&["revoke", "payments/ci"]).await;
    farm.access(&["apply"]).await;
    let line = tokio::time::timeout(Duration::from_secs(5), lines.next_line()).await;
    assert_eq!(line.expect("the connection is closed within 5 s").unwrap().as_deref(), Some("closed"));
    // A user who follows a build learns why there is nothing more to see.
    let ended = tokio::time::timeout(SOON, submit.wait_with_output()).await.expect("it ends").unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.code() == Some(4) && said.contains("no longer admits the user payments/ci"),
        "{said}"
    );
}

/// Starts `submit --follow` of a long build as the publisher `ci` of payments, and returns its first line.
async fn following(farm: &Secured, endpoints: &Endpoints) -> (Child, String) {
    let mut submit = bare_command(&[
        "submit",
        "--group",
        "payments",
        "--priority",
        "batch",
        "--follow",
        "--",
        "sleep",
        "100",
    ]);
    submit.current_dir(farm.folder.path()).env("FOREBAY_NATS_URL", &endpoints.nats);
    submit.env("FOREBAY_SEED_FILE", "payments.ci.seed");
    submit.env("FOREBAY_SERVERS_CA_FILE", farm.file("ca.pem")).stderr(Stdio::piped()).kill_on_drop(true);
    let mut submit = submit.spawn().unwrap();
    let mut errors = BufReader::new(submit.stderr.take().unwrap());
    let mut first = String::new();
    errors.read_line(&mut first).await.unwrap();
    submit.stderr = Some(errors.into_inner());
    (submit, first)
}

#[tokio::test]
async fn a_tenant_uses_the_command_line_for_its_groups_and_no_other() {
    let mut farm = Secured::start(&[]).await;
    let endpoints = farm.endpoints().await;
    farm.add_tenant("payments").await;
    let (authority, seed) = (farm.file("ca.pem"), farm.file("seeds/payments.ci.seed"));
    let elsewhere = tempfile::tempdir().unwrap();
    let run = async |words: &[&str]| {
        let mut command = bare_command(words);
        command.current_dir(elsewhere.path()).env("FOREBAY_NATS_URL", &endpoints.nats);
        command.env("FOREBAY_SEED_FILE", &seed).env("FOREBAY_SERVERS_CA_FILE", &authority);
        Output::of(command).await
    };
    let script = "for i in 1 2 3; do echo line $i; done; exit 3";
    let followed = run(&["submit", "--group", "payments", "--follow", "--", "sh", "-c", script]).await;
    assert!(followed.code == 1 && followed.stdout.contains("line 3"), "{followed:?}");
    let listed = run(&["ls", "--group", "payments"]).await;
    assert!(listed.code == 0 && listed.stdout.contains("failed"), "{listed:?}");
    let queued = run(&["submit", "--group", "payments", "--json", "--", "sh", "-c", script]).await;
    let queued: serde_json::Value = serde_json::from_str(&queued.stdout).unwrap();
    let id = queued["id"].as_str().unwrap().to_owned();
    let build = format!("payments/{id}");
    // All of it from the start, and the rest from a position on.
    let positions = |output: &Output| -> Vec<u64> {
        let position = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["position"].as_u64()
        };
        output.stdout.lines().filter_map(position).collect()
    };
    let all = run(&["watch", &build, "--json"]).await;
    let found = positions(&all);
    assert!(found.len() > 3 && all.stdout.contains(r#""kind":"console""#), "{all:?}");
    let rest = run(&["watch", &build, "--json", "--from", &found[1].to_string()]).await;
    assert_eq!(positions(&rest), found[2..], "{rest:?}");
    for command in ["get", "why"] {
        let output = run(&[command, &build]).await;
        assert!(output.code == 0 && !output.stdout.is_empty(), "{command}: {output:?}");
    }
    let without_group = run(&["watch", &id]).await;
    assert!(without_group.code == 2 && without_group.stderr.contains("GROUP/ID"), "{without_group:?}");
    // What belongs to others is denied at once, with any of these commands, and they say what to do.
    let other = farm.up.cli(&["submit", "--group", "others", "--json", "--", "true"]).await;
    let other: serde_json::Value = serde_json::from_str(&other.stdout).unwrap();
    let other = format!("others/{}", other["id"].as_str().unwrap());
    for command in ["watch", "get", "cancel", "why"] {
        let output = run(&[command, &other]).await;
        assert!(output.code == 2 && output.stdout.is_empty(), "{command}: {output:?}");
        assert!(output.stderr.contains("to the user payments/ci: `forebay access show"), "{output:?}");
        assert!(!output.stderr.contains("WARN"), "{output:?}");
    }
    // One who may not call `create`, which takes any priority, publishes.
    farm.access(&["grant", "publisher", "payments/ci", "--priority", "batch"]).await;
    farm.access(&["apply"]).await;
    let words =
        ["submit", "--group", "payments", "--priority", "batch", "--follow", "--", "sh", "-c", script];
    let published = run(&words).await;
    assert!(published.code == 1 && published.stdout.contains("line 3"), "{published:?}");
    let urgent = run(&["submit", "--group", "payments", "--priority", "emergency", "--", "true"]).await;
    assert!(urgent.code == 2 && urgent.stderr.contains("denies forebay.build.request"), "{urgent:?}");
    let log = run(&["logs", &build]).await;
    assert!(log.code == 0 && log.stdout.contains("line 1\nline 2\nline 3"), "{log:?}");
    let submitted = run(&["submit", "--group", "others", "--", "true"]).await;
    assert!(
        submitted.code == 2 && submitted.stderr.contains("denies forebay.build.request.others"),
        "{submitted:?}"
    );
}

/// Publishers of builds at once.
const PUBLISHERS: usize = 32;

#[tokio::test]
async fn keys_of_services_are_replaced_while_builds_run() {
    let mut farm = Secured::start(&["--workspaces", "16"]).await;
    let client = farm.up.client().await;
    let ended = AtomicBool::new(false);
    let builds = async || {
        let (mut all, group) = (Vec::new(), "ci".parse().unwrap());
        while !ended.load(Ordering::Relaxed) {
            let id = BuildId::generate();
            let request =
                BuildRequest { id: Some(id), command: vec!["true".to_owned()], ..BuildRequest::default() };
            // A call whose answer was lost is repeated, as clients do.
            let deadline = Instant::now() + SOON;
            while let Err(error) = client.create(&group, &request, None).await {
                assert!(error.is_unreachable() && Instant::now() < deadline, "{error:?}");
            }
            all.push(model::BuildKey { group: group.clone(), id });
        }
        all
    };
    let rotation = async {
        for role in ["enqueuer", "dispatcher", "worker", "reaper", "governor", "gateway"] {
            let (service, file) = (&*format!("{role}/{role}-1"), format!("seeds/{role}.{role}-1.seed"));
            let before = fs::read(farm.file(&file)).unwrap();
            farm.access(&["rotate", service]).await;
            farm.access(&["apply"]).await;
            farm.access(&["rotate", service, "--finish"]).await;
            farm.access(&["apply"]).await;
            assert_ne!(before, fs::read(farm.file(&file)).unwrap(), "{service}");
        }
        ended.store(true, Ordering::Relaxed);
    };
    let began = Instant::now();
    let publishers = futures::future::join_all((0..PUBLISHERS).map(|_| builds()));
    let (all, ()) = tokio::join!(publishers, rotation);
    let (all, took) = (all.concat(), began.elapsed());
    assert!(all.len() > 20, "{}", all.len());
    eprintln!("{} builds in {took:.1?}, {:.0} per second", all.len(), all.len() as f64 / took.as_secs_f64());
    for key in &all {
        let deadline = Instant::now() + SOON;
        let outcome = loop {
            let view = client.get(key).await.unwrap();
            if let Some(result) = view.record.result() {
                break result.outcome;
            }
            assert!(Instant::now() < deadline, "{key} has not ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(outcome, Outcome::Succeeded, "{key}");
    }
}

#[tokio::test]
async fn changes_of_access_are_recorded_and_mistakes_are_refused() {
    let farm = Secured::start(&[]).await;
    farm.add_tenant("payments").await;
    farm.access(&["revoke", "payments/ci"]).await;
    let mistaken = farm.up.cli(&["access", "revoke", "payments/cl"]).await;
    assert!(mistaken.stderr.contains("payments/cl does not exist"), "{mistaken:?}");
    let began = Instant::now();
    loop {
        let shown = farm.up.cli(&["audit", "--kind", "access"]).await.stdout;
        let lines: Vec<&str> = shown.lines().collect();
        if let [tenant, publisher, revoked] = lines.as_slice() {
            assert!(tenant.contains("payments") && tenant.contains("tenant, groups payments"), "{tenant}");
            assert!(publisher.contains("payments/ci") && publisher.contains("publisher"), "{publisher}");
            assert!(revoked.contains("payments/ci") && revoked.contains("removed"), "{revoked}");
            break;
        }
        assert!(began.elapsed() < SOON, "{shown}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // What is weak is named, with what mends it.
    fs::set_permissions(farm.file("operator.token"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(farm.file("rules.toml"), "[[rules]]\ngroup = \"all\"\n").unwrap();
    let doctor = farm.up.cli(&["doctor"]).await;
    assert!(doctor.stdout.contains("FAIL  rules") && doctor.stdout.contains("group"), "{doctor:?}");
    fs::write(farm.file("rules.toml"), "").unwrap();
    let emptied = farm.up.cli(&["doctor"]).await.stdout;
    assert!(emptied.contains("FAIL  rules") && emptied.contains("there are no rules"), "{emptied}");
    assert!(doctor.stdout.contains("chmod 600") && doctor.stdout.contains("operator.token"), "{doctor:?}");
}

#[tokio::test]
async fn a_secured_folder_is_not_opened_by_a_forgotten_option() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir_all(data.join("secure")).unwrap();
    fs::write(data.join("secure/access.toml"), "").unwrap();
    let output = Output::of(bare_command(&["up", "--data", data.to_str().unwrap()])).await;
    assert!(output.code == 2 && output.stderr.contains("start it with --secure"), "{output:?}");
}

#[tokio::test]
async fn a_secured_farm_needs_servers_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data").display().to_string();
    for servers in [["--nats", "nats://127.0.0.1:1"], ["--redis", "redis://127.0.0.1:1"]] {
        let words = ["up", "--secure", "--data", &data, servers[0], servers[1]];
        let output = farm::Output::of(farm::bare_command(&words)).await;
        assert!(output.code == 2 && output.stderr.contains(servers[0]), "{output:?}");
    }
}
