//! Tests of a store whose backing is the store of a farm.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cas::{Cas, CasConfig, CasError};
use cas_grpc::{BlobApi, Limits};
use listener::{ClientListener, Limiter, Protocol};
use model::{BlobDigest, DigestFunction, StoreId};
use reapi::execution::{ActionResult, OutputFile};
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

/// The server of a farm.
struct Farm {
    cas: Cas,
    at: SocketAddr,
    serving: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    _folder: TempDir,
}

impl Farm {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cas = Cas::open(CasConfig::new(folder.path())).unwrap();
        let at = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut farm = Self { cas, at, serving: None, _folder: folder };
        farm.serve().await;
        farm
    }

    async fn serve(&mut self) {
        let listener = TcpListener::bind(self.at).await.unwrap();
        self.at = listener.local_addr().unwrap();
        let routes = cas_grpc::routes(BlobApi {
            cas: self.cas.clone(),
            instances: "*=default".parse().unwrap(),
            zones: policy::zones::Zones::default(),
            now: std::sync::Arc::new(model::Millis::of_this_machine),
            limits: Limits::default(),
            executes: false,
            live: None,
            log_writes: None,
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            let ended = async move { drop(stopped.await) };
            cas_grpc::serve(
                ClientListener::new(listener, Protocol::Http2, Limiter::default()),
                cas_grpc::guarded(routes, callers::Callers::anyone()),
                ended,
            )
            .await
            .unwrap();
        });
        self.serving = Some((stop, serving));
    }

    /// Stops the server; when this returns, all connections are closed.
    async fn stop(&mut self) {
        let (stop, serving) = self.serving.take().unwrap();
        drop(stop);
        tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap();
    }

    fn machine(&self) -> Machine {
        let folder = tempfile::tempdir().unwrap();
        let backing = Some(format!("grpc://{}/main", self.at));
        let cas = Cas::open(CasConfig { backing, ..CasConfig::new(folder.path()) }).unwrap();
        Machine { cas, folder }
    }
}

/// A machine with its own disk.
struct Machine {
    cas: Cas,
    folder: TempDir,
}

fn noise(size: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut content = Vec::with_capacity(size + 8);
    while content.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&state.to_le_bytes());
    }
    content.truncate(size);
    content.into()
}

async fn put(cas: &Cas, function: DigestFunction, size: usize) -> BlobDigest {
    cas.put_bytes(function, noise(size, size as u64)).await.unwrap()
}

async fn assert_has(cas: &Cas, digest: &BlobDigest) {
    let content = cas.get(digest).await.unwrap().unwrap();
    assert_eq!(digest.function.digest(&content), *digest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_machine_stores_the_farm_and_another_have() {
    let farm = Farm::start().await;
    let writer = farm.machine();
    let mut digests = Vec::new();
    for function in [DigestFunction::Sha256, DigestFunction::Blake3] {
        for size in [0, 1, 300, 100_000, 1_000_000, 9_000_000] {
            digests.push(put(&writer.cas, function, size).await);
        }
        let path = writer.folder.path().join("file");
        std::fs::write(&path, noise(2_000_000, 7)).unwrap();
        digests.push(writer.cas.put_file(function, &path, false).await.unwrap());
        let large = noise(5_000_000, 8);
        let mut stream = writer.cas.writer(function.digest(&large)).await.unwrap();
        stream.write(large.clone()).await.unwrap();
        stream.finish().await.unwrap();
        digests.push(function.digest(&large));
    }
    for digest in &digests {
        assert_has(&farm.cas, digest).await;
    }
    let absent = DigestFunction::Sha256.digest(b"absent");
    let asked = [&digests[..], &[absent]].concat();
    let reader = farm.machine();
    assert_eq!(reader.cas.missing(&asked).await.unwrap(), [absent]);
    let contents = reader.cas.get_many(&asked).await.unwrap();
    assert!(contents.last().unwrap().is_none());
    for (digest, content) in digests.iter().zip(contents) {
        assert_eq!(digest.function.digest(&content.unwrap()), *digest);
    }
    let runner = farm.machine();
    let wanted: Vec<_> = asked.iter().map(|digest| (*digest, digest.size == 300)).collect();
    for (digest, path) in asked.iter().zip(runner.cas.local_paths(&wanted).await.unwrap()) {
        let found = path.map(|path| digest.function.digest(&std::fs::read(path).unwrap()));
        assert_eq!(found, (*digest != absent).then_some(*digest));
    }
    let wrong = writer.cas.put(&absent, Bytes::from_static(b"other!")).await;
    assert!(matches!(wrong, Err(CasError::Mismatch { .. })), "{wrong:?}");
    assert!(!farm.cas.contains(&absent).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_only_in_the_local_tier_is_not_stored_until_the_farm_has_it() {
    let farm = Farm::start().await;
    let machine = farm.machine();
    let content = noise(10_000, 1);
    let digest = DigestFunction::Sha256.digest(&content);
    let large = DigestFunction::Sha256.digest(&noise(3_000_000, 3_000_000));
    // A local copy of a blob that the farm does not have, as if it had evicted it.
    let alone = Cas::open(CasConfig::new(machine.folder.path())).unwrap();
    alone.put(&digest, content.clone()).await.unwrap();
    put(&alone, DigestFunction::Sha256, 3_000_000).await;
    assert_eq!(machine.cas.missing(&[digest, large]).await.unwrap(), [digest, large]);
    machine.cas.put(&digest, content).await.unwrap();
    let path = machine.folder.path().join("file");
    std::fs::write(&path, noise(3_000_000, 3_000_000)).unwrap();
    machine.cas.put_file(DigestFunction::Sha256, &path, true).await.unwrap();
    assert_eq!(farm.cas.missing(&[digest, large]).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn action_results_are_the_farms_and_calls_survive_a_restart() {
    let mut farm = Farm::start().await;
    let (writer, reader) = (farm.machine(), farm.machine());
    let output = put(&writer.cas, DigestFunction::Sha256, 5000).await;
    let file = OutputFile {
        path: "out".into(),
        digest: Some(reapi::digest::to_proto(&output)),
        ..OutputFile::default()
    };
    let result = ActionResult { output_files: vec![file], exit_code: 3, ..ActionResult::default() };
    let action = DigestFunction::Sha256.digest(b"action");
    assert!(reader.cas.get_action("main", &action).await.unwrap().is_none());
    farm.stop().await;
    let unheard = reader.cas.get_action("main", &action).await.unwrap_err();
    assert!(matches!(unheard, CasError::Unreachable { .. }), "{unheard:?}");
    assert!(matches!(reader.cas.get(&output).await, Err(CasError::Unreachable { .. })));
    farm.serve().await;
    writer.cas.put_action("main", &action, &result).await.unwrap();
    let found = reader.cas.get_action("main", &action).await.unwrap().unwrap();
    assert_eq!((found.exit_code, &found.output_files), (3, &result.output_files));
    assert!(reader.cas.get_action("other", &action).await.unwrap().is_none());
    assert!(farm.cas.get_action("main", &action).await.unwrap().is_some());
    // Calls in progress do not notice a server that comes back.
    farm.stop().await;
    let (read, ()) = tokio::join!(reader.cas.get(&output), farm.serve());
    assert_eq!(read.unwrap().unwrap().len(), 5000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_knows_the_id_of_the_farms_store_and_whether_it_answers() {
    let mut farm = Farm::start().await;
    let machine = farm.machine();
    assert_eq!(machine.cas.id().await.unwrap(), None);
    let file = farm.cas.config().root.join(cas::STORE_ID);
    std::fs::create_dir(&file).unwrap();
    let unread = machine.cas.id().await;
    assert!(matches!(unread, Err(CasError::Remote { .. })), "{unread:?}");
    std::fs::remove_dir(&file).unwrap();
    let id = farm.cas.id_or(StoreId::generate()).await.unwrap();
    assert_eq!(machine.cas.id().await.unwrap(), Some(id));
    let away = machine.cas.away().unwrap();
    assert!(!*away.borrow() && farm.cas.away().is_none());
    farm.stop().await;
    let unheard = machine.cas.id().await;
    assert!(matches!(unheard, Err(CasError::Unreachable { .. })), "{unheard:?}");
    assert!(*away.borrow());
    assert!(matches!(machine.cas.probe().await, Err(CasError::Unreachable { .. })));
    farm.serve().await;
    assert_eq!(machine.cas.id().await.unwrap(), Some(id));
    assert!(!*away.borrow());
    machine.cas.report_no_answer();
    assert!(*away.borrow());
    machine.cas.probe().await.unwrap();
    assert!(!*away.borrow());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_opens_before_its_farm_is_up() {
    let folder = tempfile::tempdir().unwrap();
    for (url, works) in
        [("grpc://127.0.0.1:1", true), ("grpc://h:1/a/b", true), ("grpc://h", false), ("grpc://:1", false)]
    {
        let opened = Cas::open(CasConfig { backing: Some(url.into()), ..CasConfig::new(folder.path()) });
        assert_eq!(opened.is_ok(), works, "{url}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_input_root_of_many_small_files_comes_in_batches() {
    const FILES: u64 = 5000;
    let farm = Farm::start().await;
    let content = |number| noise(200, number + 1);
    let blobs: Vec<_> =
        (0..FILES).map(|number| (DigestFunction::Sha256.digest(&content(number)), content(number))).collect();
    let writer = farm.machine();
    let started = Instant::now();
    assert!(writer.cas.put_many(blobs.clone()).await.iter().all(Result::is_ok));
    println!("{FILES} files stored through in {:?}", started.elapsed());
    let reader = farm.machine();
    let wanted: Vec<_> = blobs.iter().map(|(digest, _)| (*digest, false)).collect();
    let started = Instant::now();
    let paths = reader.cas.local_paths(&wanted).await.unwrap();
    let took = started.elapsed();
    println!("{FILES} files fetched cold in {took:?}: {:.0} files/s", 5000.0 / took.as_secs_f64());
    assert!(paths.iter().flatten().all(|path| path.exists()));
    assert_eq!(paths.iter().flatten().count() as u64, FILES);
}
