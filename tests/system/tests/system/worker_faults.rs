//! One of two workers loses what it needs: no build fails, all run on the other one, and the first one comes back.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use farm::{Builder, Farm, SOON, ServiceProcess, SmallDisk};
use model::{
    BuildKey, BuildRequest, Context, Control, Heartbeat, Outcome, ReasonCode, State, WorkerId, WorkerStatus,
};

use crate::{
    check::{ended_as, ended_within, script},
    contexts::sh,
};

/// Time for a worker to notice that what it needs is there again.
const BACK: Duration = Duration::from_secs(60);

/// Two workers with a workspace each, folders of their own, and settings of their own.
struct Pair {
    farm: Farm,
    sound: WorkerId,
    faulty: WorkerId,
    _processes: [ServiceProcess; 2],
}

impl Pair {
    /// Starts the faulty worker in `data`, with `more` settings.
    async fn start(builder: Builder, data: PathBuf, more: &[(&str, &str)]) -> Self {
        let farm = builder.without("worker").workspaces(1).start().await;
        let second = farm.folder().join("sound");
        fs::create_dir_all(&second).unwrap();
        let env = [("FOREBAY_DATA", second.to_str().unwrap())];
        let sound = farm.spawn_with_env("worker", &env).await;
        let env = [&[("FOREBAY_DATA", data.to_str().unwrap())], more].concat();
        let faulty = farm.spawn_with_env("worker", &env).await;
        let ids = [id(&farm, sound.pid()).await, id(&farm, faulty.pid()).await];
        let [a, b] = ids;
        Self { farm, sound: a, faulty: b, _processes: [sound, faulty] }
    }

    /// Submits six builds like this one.
    async fn submit(&self, request: impl Fn() -> BuildRequest) -> Vec<BuildKey> {
        let mut keys = Vec::new();
        for _ in 0..6 {
            keys.push(self.farm.submit("g", request()).await);
        }
        keys
    }

    /// All of them succeed on the sound worker; returns the sum of their attempts.
    async fn run_on_the_sound_one(&self, keys: &[BuildKey]) -> u32 {
        let mut attempts = 0;
        for key in keys {
            let record = ended_within(&self.farm, key, BACK).await;
            assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{record:#?}");
            assert_eq!(record.invocation().unwrap().worker, self.sound);
            attempts += record.attempt.0;
        }
        attempts
    }

    /// Waits until the faulty worker has this status, and returns why.
    async fn is(&self, wanted: WorkerStatus) -> Option<String> {
        let looks = async {
            loop {
                let found = self.heartbeat().await;
                if found.status == wanted {
                    return found.short;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(BACK, looks).await.unwrap_or_else(|_| panic!("it is not {wanted:?}"))
    }

    async fn heartbeat(&self) -> Heartbeat {
        let workers = self.farm.client().workers().await.unwrap();
        workers.into_iter().find(|it| it.heartbeat.worker == self.faulty).unwrap().heartbeat
    }

    /// The faulty worker is back: it runs this build without the other one.
    async fn is_back(&self, request: BuildRequest) {
        self.is(WorkerStatus::Ready).await;
        self.farm.client().control(&self.sound, &Control::Drain).await.unwrap();
        let key = self.farm.submit("g", request).await;
        let record = ended_within(&self.farm, &key, BACK).await;
        assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{record:#?}");
        assert_eq!(record.invocation().unwrap().worker, self.faulty);
    }
}

async fn id(farm: &Farm, pid: u32) -> WorkerId {
    let looks = async {
        loop {
            let workers = farm.client().workers().await.unwrap();
            if let Some(found) = workers.into_iter().find(|it| it.heartbeat.pid == pid) {
                return found.heartbeat.worker;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, looks).await.expect("a worker")
}

#[tokio::test]
async fn a_full_disk_fails_no_build_and_the_worker_is_back_when_it_has_room() {
    let Some(disk) = SmallDisk::mount(60) else { return };
    let data = disk.path().join("data");
    fs::create_dir_all(&data).unwrap();
    let pair = Pair::start(Farm::builder().without("gateway"), data, &[]).await;
    // A build on each of the workers writes as the disk of one becomes full.
    let gate = pair.farm.folder().join("gate");
    let writes = format!(
        "i=0; while [ ! -e {} ]; do i=$((i+1)); head -c 20000 /dev/zero > file$i || exit 9; sleep 0.02; done",
        gate.display()
    );
    let mut running = Vec::new();
    for _ in 0..2 {
        let key = pair.farm.submit("g", script(&writes)).await;
        pair.farm.wait_until(&key, SOON, |record| record.state() == State::InProgress).await;
        running.push(key);
    }
    let fill = disk.fill();
    let why = pair.is(WorkerStatus::Full).await.unwrap();
    assert!(why.contains("disk_left_percent"), "{why}");
    let given_back = async {
        loop {
            for key in &running {
                let record = pair.farm.bus().records().latest(key).await.unwrap().unwrap().1;
                assert!(record.result().is_none(), "{record:#?}");
                if let Some(retry) = record.queue.retry {
                    return retry;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let retry = tokio::time::timeout(SOON, given_back).await.expect("a build that is given back");
    assert_eq!((retry.reason.code, &retry.worker), (ReasonCode::DiskFull, &pair.faulty), "{retry:?}");
    fs::write(&gate, "").unwrap();
    let keys = pair.submit(|| script("echo x > file")).await;
    pair.run_on_the_sound_one(&[keys, running].concat()).await;
    fs::remove_file(fill).unwrap();
    pair.is_back(script("echo x > file")).await;
}

#[tokio::test]
async fn a_store_that_is_gone_fails_no_build_and_the_worker_is_back_with_it() {
    let farm = Farm::builder();
    let port = farm::Port::reserve();
    let listen = format!("127.0.0.1:{}", port.number());
    let builder = farm.env("FOREBAY_GRPC_LISTEN", listen.clone());
    let data = tempfile::tempdir().unwrap();
    let url = format!("grpc://{listen}");
    let pair = Pair::start(builder, data.path().to_owned(), &[("FOREBAY_CAS_URL", &url)]).await;
    let with_output = || BuildRequest { outputs: vec!["out".to_owned()], ..script("echo x > out") };
    let gateway = pair.farm.take("gateway");
    gateway.kill9();
    let keys = pair.submit(with_output).await;
    pair.run_on_the_sound_one(&keys).await;
    let why = pair.is(WorkerStatus::Full).await.unwrap();
    assert!(why.contains("does not answer"), "{why}");
    pair.farm.keep(pair.farm.spawn("gateway").await);
    pair.is_back(with_output()).await;
}

#[tokio::test]
async fn a_git_that_is_broken_fails_no_build_and_closes_its_worker() {
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("source");
    fs::create_dir(&source).unwrap();
    let commit = sh(
        &source,
        "git init -q .; echo x > file; git add .; git -c user.name=a -c user.email=a@b commit -qm x; git rev-parse HEAD",
    );
    // Git of the faulty worker, which works until the file `broken` exists.
    let (tools, broken) = (place.path().join("tools"), place.path().join("broken"));
    fs::create_dir(&tools).unwrap();
    let git = format!(
        "#!/bin/sh\n[ ! -e {} ] || {{ echo 'git: no such library' >&2; exit 127; }}\nPATH=${{PATH#*:}} exec git \"$@\"\n",
        broken.display()
    );
    fs::write(tools.join("git"), git).unwrap();
    fs::set_permissions(tools.join("git"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let sources = place.path().display().to_string();
    let builder = Farm::builder().without("gateway").env("FOREBAY_CONTEXT_PATHS", format!("[{sources:?}]"));
    let pair = Pair::start(builder, data, &[("PATH", &path)]).await;
    let context = Context::Git { url: source.display().to_string(), revision: commit, patch: None };
    let of_git = || BuildRequest { context: context.clone(), ..script("cat file") };
    fs::write(&broken, "").unwrap();
    let keys = pair.submit(of_git).await;
    let attempts = pair.run_on_the_sound_one(&keys).await;
    assert!(attempts > 6, "some were given back");
    // After three that another worker could prepare, it is closed.
    let mut more = Vec::new();
    let why = loop {
        if let Some(why) = pair.heartbeat().await.short {
            break why;
        }
        let key = pair.farm.submit("g", of_git()).await;
        ended_as(&pair.farm, &key, Outcome::Succeeded).await;
        more.push(key);
        assert!(more.len() < 200, "it is never closed");
    };
    assert!(why.contains("git: no such library") || why.contains("which another worker could do"), "{why}");
    fs::remove_file(&broken).unwrap();
    pair.is_back(of_git()).await;
    // What no worker can fetch fails after the second one.
    pair.farm.client().control(&pair.sound, &Control::Resume).await.unwrap();
    let away =
        Context::Git { url: "http://127.0.0.1:1/none.git".into(), revision: "main".into(), patch: None };
    let key = pair.farm.submit("g", BuildRequest { context: away, ..script("true") }).await;
    let record = ended_as(&pair.farm, &key, Outcome::Failed).await;
    assert_eq!(record.attempt.0, 2, "{record:#?}");
    assert_eq!(record.result().unwrap().reason.as_ref().unwrap().code, ReasonCode::ContextUnavailable);
}

#[tokio::test]
async fn a_worker_without_a_folder_for_temporary_files_runs_builds() {
    let place = tempfile::tempdir().unwrap();
    let (data, temporary) = (place.path().join("data"), place.path().join("tmp"));
    fs::create_dir(&data).unwrap();
    fs::create_dir(&temporary).unwrap();
    let builder = Farm::builder().without("gateway").env("FOREBAY_BUILD_SANDBOX", "auto");
    let pair = Pair::start(builder, data, &[("TMPDIR", temporary.to_str().unwrap())]).await;
    fs::remove_dir_all(&temporary).unwrap();
    fs::write(&temporary, "").unwrap();
    let uses = || script("f=$(mktemp) && echo x > \"$f\" && echo y > /tmp/file");
    for key in pair.submit(uses).await {
        ended_as(&pair.farm, &key, Outcome::Succeeded).await;
    }
    pair.is_back(uses()).await;
    assert!(temporary.is_file(), "the folder is away");
}
