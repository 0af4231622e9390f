//! Gateways against real servers, and a simulated executor.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bus::{Bus, FromJson as _, Live, Message as _, Patience, Written};
use callers::Callers;
use cas::Cas;
use farm::Servers;
use futures::StreamExt as _;
use gateway::grpc::{GrpcConfig, Serving, serve};
use model::{
    Amount, BlobDigest, DigestFunction, ExecutionKey, ExecutionOutcome, ExecutionProgress, ExecutionRecord,
    ExecutionStage, ExecutorHeartbeat, ExecutorId, ExecutorStatus, LiveOutputReply, LiveOutputRequest,
    Millis, Pool, Resources, Sequence, StoredResult, WindowState,
};
use parking_lot::Mutex;
use prost::Message as _;
use reapi::{
    execution::{
        Action, ActionResult, Command, ExecuteOperationMetadata, ExecuteRequest, ExecuteResponse,
        ExecutedActionMetadata, Platform, RequestMetadata, execution_client::ExecutionClient,
        platform::Property,
    },
    longrunning::{Operation, operation, operations_client::OperationsClient},
};
use service::Context;
use settings::Settings;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming, metadata::MetadataValue, transport::Channel};

pub(crate) const SOON: Duration = farm::SOON;

/// Servers, a bus and a store; gateways and executors are started on demand.
pub(crate) struct Farm {
    pub(crate) servers: Servers,
    pub(crate) settings: Settings,
    pub(crate) bus: Bus,
    pub(crate) cas: Cas,
}

/// A gateway running in this process.
pub(crate) struct Gateway {
    pub(crate) channel: Channel,
    pub(crate) address: std::net::SocketAddr,
    pub(crate) stop: CancellationToken,
    _serving: Serving,
}

impl Farm {
    pub(crate) async fn start() -> Self {
        let servers = Servers::start().await;
        servers.create_streams().await;
        let settings = Settings {
            nats_url: servers.nats_url(),
            redis_url: servers.redis_url(),
            data: servers.folder().join("data"),
            grpc_listen: "127.0.0.1:0".into(),
            fetch_hosts: vec!["127.0.0.1".parse().unwrap()],
            action_waiter_grace_ms: 300,
            action_timeout_seconds_max: 3600,
            instances: "=default main=default,other;priority=-10..10 ro=default;readonly".into(),
            ..Settings::default()
        };
        let context = connect(&settings).await;
        let cas = context.cas().await.unwrap();
        Self { servers, settings, bus: context.bus, cas }
    }

    pub(crate) async fn gateway(&self) -> Gateway {
        let context = connect(&self.settings).await;
        let cas = context.cas().await.unwrap();
        let serving =
            serve(&context, cas, GrpcConfig::new(&self.settings.gateway()).unwrap(), Callers::anyone())
                .await
                .unwrap();
        let channel = Channel::from_shared(format!("http://{}", serving.bound().address)).unwrap();
        let channel = channel.connect().await.unwrap();
        Gateway { channel, address: serving.bound().address, stop: context.stop, _serving: serving }
    }

    /// Announces the pool named `default`, whose executors left.
    pub(crate) async fn pool(&self) {
        self.bus.buckets().announce_pool(&default_pool()).await.unwrap();
    }

    /// The questions that gateways ask each other from now on.
    pub(crate) async fn questions(&self) -> async_nats::Subscriber {
        let subject = bus::Subject::ExecutionWaiters.to_string();
        let questions = self.bus.client().subscribe(subject).await.unwrap();
        // The server has processed the subscription when it answers this query.
        self.bus.jetstream().query_account().await.unwrap();
        questions
    }

    /// An executor that holds its lease and reports the executions offered to it; it runs nothing.
    pub(crate) async fn executor(&self) -> Executor {
        self.pool().await;
        Executor::start(&self.bus, self.cas.clone()).await
    }

    /// A stored action that runs `true` with `salt`.
    pub(crate) async fn action(&self, salt: &str) -> BlobDigest {
        self.action_of(Action::default(), command(), salt).await
    }

    pub(crate) async fn action_of(&self, action: Action, command: Command, salt: &str) -> BlobDigest {
        let command = self.put(command.encode_to_vec()).await;
        let root = DigestFunction::Sha256.empty();
        let action = Action {
            command_digest: Some(reapi::digest::to_proto(&command)),
            input_root_digest: Some(reapi::digest::to_proto(&root)),
            salt: salt.as_bytes().to_vec(),
            ..action
        };
        self.put(action.encode_to_vec()).await
    }

    pub(crate) async fn put(&self, content: Vec<u8>) -> BlobDigest {
        self.cas.put_bytes(DigestFunction::Sha256, content.into()).await.unwrap()
    }

    /// The lines of one section of the Redis command `INFO`.
    pub(crate) async fn redis_info(&self, section: &str) -> String {
        let mut connection = TcpStream::connect(self.servers.redis_url().trim_start_matches("redis://"))
            .await
            .expect("Redis listens");
        connection.write_all(format!("INFO {section}\r\nQUIT\r\n").as_bytes()).await.unwrap();
        let mut text = String::new();
        connection.read_to_string(&mut text).await.unwrap();
        text
    }

    pub(crate) async fn last(&self, key: &ExecutionKey) -> ExecutionRecord {
        self.bus.records().latest(key).await.unwrap().unwrap().1
    }
}

async fn connect(settings: &Settings) -> Context {
    let stop = CancellationToken::new();
    Context::connect(settings.service("gateway"), "gateway", Patience::Wait, stop).await.unwrap()
}

impl Gateway {
    pub(crate) fn execution(&self) -> ExecutionClient<Channel> {
        ExecutionClient::new(self.channel.clone())
    }

    pub(crate) fn operations(&self) -> OperationsClient<Channel> {
        OperationsClient::new(self.channel.clone())
    }

    pub(crate) async fn execute(
        &self,
        request: impl tonic::IntoRequest<ExecuteRequest>,
    ) -> Result<Operations, Status> {
        Ok(Operations(self.execution().execute(request).await?.into_inner()))
    }

    pub(crate) async fn run(&self, action: &BlobDigest) -> Operations {
        self.execute(request(action)).await.unwrap()
    }

    pub(crate) async fn wait(&self, name: &str) -> Result<Operations, Status> {
        let request = reapi::execution::WaitExecutionRequest { name: name.to_owned() };
        Ok(Operations(self.execution().wait_execution(request).await?.into_inner()))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) fn command() -> Command {
    Command { arguments: vec!["true".into()], ..Command::default() }
}

pub(crate) fn platform(name: &str, value: &str) -> Platform {
    Platform { properties: vec![Property { name: name.into(), value: value.into() }] }
}

pub(crate) fn request(action: &BlobDigest) -> ExecuteRequest {
    ExecuteRequest {
        instance_name: "main".into(),
        action_digest: Some(reapi::digest::to_proto(action)),
        ..ExecuteRequest::default()
    }
}

/// A request with this invocation id.
pub(crate) fn of_invocation<T>(invocation: &str, message: T) -> tonic::Request<T> {
    let metadata = RequestMetadata { tool_invocation_id: invocation.into(), ..Default::default() };
    let mut request = tonic::Request::new(message);
    let value = MetadataValue::from_bytes(&metadata.encode_to_vec());
    request.metadata_mut().insert_bin(reapi::metadata::REQUEST_METADATA, value);
    request
}

/// The operation stream of a waiting client.
pub(crate) struct Operations(pub Streaming<Operation>);

impl Operations {
    pub(crate) async fn next(&mut self) -> Operation {
        let next = tokio::time::timeout(SOON, self.0.message()).await.expect("an operation comes soon");
        next.unwrap().expect("the stream goes on")
    }

    /// The operations up to the first for which `wanted` is true, including it.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&Operation) -> bool) -> Vec<Operation> {
        let mut all = Vec::new();
        loop {
            all.push(self.next().await);
            if wanted(all.last().unwrap()) {
                return all;
            }
        }
    }

    /// The response, after which the stream ends.
    pub(crate) async fn response(mut self) -> ExecuteResponse {
        let done = self.until(|operation| operation.done).await.pop().unwrap();
        let end = tokio::time::timeout(SOON, self.0.message()).await.expect("the end comes soon");
        assert_eq!(end.unwrap(), None, "nothing follows the operation that is done");
        response(&done)
    }
}

pub(crate) fn response(operation: &Operation) -> ExecuteResponse {
    assert!(operation.done);
    match operation.result.as_ref().unwrap() {
        operation::Result::Response(any) => ExecuteResponse::decode(&*any.value).unwrap(),
        operation::Result::Error(error) => panic!("Operation.error is never set: {error:?}"),
    }
}

pub(crate) fn metadata(operation: &Operation) -> ExecuteOperationMetadata {
    let any = operation.metadata.as_ref().unwrap();
    assert_eq!(any.type_url, "type.googleapis.com/build.bazel.remote.execution.v2.ExecuteOperationMetadata");
    ExecuteOperationMetadata::decode(&*any.value).unwrap()
}

/// Executes a request; returns the operation name and the stream.
pub(crate) async fn begun(
    gateway: &Gateway,
    request: impl tonic::IntoRequest<ExecuteRequest>,
) -> (String, Operations) {
    let mut stream = gateway.execute(request).await.unwrap();
    let name = stream.next().await.name;
    (name, stream)
}

/// The final status code of a waiting client.
pub(crate) async fn code(stream: Operations) -> Code {
    Code::from(stream.response().await.status.unwrap().code)
}

/// The execution key in an operation name.
pub(crate) fn key(name: &str) -> ExecutionKey {
    name.split_once("operations/").unwrap().1.parse().unwrap()
}

/// An executor as seen on the bus.
pub(crate) struct Executor {
    bus: Bus,
    cas: Cas,
    pub(crate) id: ExecutorId,
    /// Accepted and requeued executions, as the scheduler would offer them.
    pub(crate) offered: mpsc::UnboundedReceiver<(Sequence, ExecutionRecord)>,
}

/// What the executors of the pool named `default` offer.
fn default_pool() -> Pool {
    let gpu = BTreeMap::from([("gpu".parse().unwrap(), Amount::whole(2))]);
    Pool {
        name: "default".parse().unwrap(),
        properties: BTreeMap::from([("OSFamily".to_owned(), vec!["linux".to_owned()])]),
        root_is_input: false,
        capacity: Resources { custom: gpu, ..Resources::new(4000, 8 << 30) },
        executor_type: model::ExecutorType::x86(),
    }
}

impl Executor {
    async fn start(bus: &Bus, cas: Cas) -> Self {
        let id: ExecutorId = format!("executor-{}", uuid::Uuid::new_v4().simple()).parse().unwrap();
        let pool = default_pool();
        let heartbeat = ExecutorHeartbeat {
            executor: id.clone(),
            pool: pool.name,
            host: "test".into(),
            home: "home".parse().unwrap(),
            pid: 1,
            started_at_ms: Millis::of_this_machine(),
            status: ExecutorStatus::Ready,
            executor_type: model::ExecutorType::x86(),
            slots: 4,
            properties: pool.properties,
            root_is_input: pool.root_is_input,
            capacity: pool.capacity,
            held: Resources::default(),
            running: Vec::new(),
            room: model::Room::default(),
            window: WindowState::default(),
            images: Vec::new(),
            image_names: Vec::new(),
            shared_services: Vec::new(),
            ttl_ms: 60_000,
            clock_skew_ms: None,
        };
        bus.leases().acquire(&id, heartbeat, SOON).await.unwrap();
        let mut live = bus.client().subscribe("forebay.action.live.>").await.unwrap();
        // The server has processed the subscription when it answers this query.
        bus.jetstream().query_account().await.unwrap();
        let (sender, offered) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(message) = live.next().await {
                if let Some(Live::Stored(stored)) = Live::of(message) {
                    let record = stored.execution().unwrap();
                    if record.outcome().is_none() && sender.send((stored.sequence, record)).is_err() {
                        return;
                    }
                }
            }
        });
        Self { bus: bus.clone(), cas, id, offered }
    }

    pub(crate) async fn offer(&mut self) -> (Sequence, ExecutionRecord) {
        tokio::time::timeout(SOON, self.offered.recv()).await.expect("an offer comes soon").unwrap()
    }

    pub(crate) async fn progress(&self, key: &ExecutionKey, stage: ExecutionStage) {
        let progress = ExecutionProgress {
            executor: self.id.clone(),
            stage,
            at_ms: Millis::of_this_machine(),
            image: None,
        };
        self.bus.publish_progress(key, &progress).await.unwrap();
    }

    pub(crate) fn outcome(&self, code: i32, result: Option<&ActionResult>) -> ExecutionOutcome {
        ExecutionOutcome {
            executor: Some(self.id.clone()),
            exit_code: result.map(|result| result.exit_code),
            result: result.map(|result| StoredResult::Inline(STANDARD.encode(result.encode_to_vec()))),
            ..ExecutionOutcome::without_run(code, String::new())
        }
    }

    pub(crate) async fn finish(&self, offer: (Sequence, ExecutionRecord), outcome: ExecutionOutcome) {
        let (sequence, record) = offer;
        let next = record.finished(sequence, outcome, Millis::of_this_machine());
        let written = self.bus.transition(&next, sequence, SOON).await.unwrap();
        assert!(matches!(written, Written::Won(_)), "{written:?}");
    }

    /// Claims the next execution and ends it with `stdout`.
    pub(crate) async fn run_one(&mut self, stdout: &str) {
        let offer = self.offer().await;
        self.progress(&offer.1.execution.key(), ExecutionStage::Running).await;
        let result = self.result(stdout).await;
        let outcome = self.outcome(0, Some(&result));
        self.finish(offer, outcome).await;
    }

    pub(crate) async fn result(&self, stdout: &str) -> ActionResult {
        let digest = self.cas.put_bytes(DigestFunction::Sha256, stdout.to_owned().into()).await.unwrap();
        let metadata = ExecutedActionMetadata { worker: self.id.to_string(), ..Default::default() };
        ActionResult {
            stdout_digest: Some(reapi::digest::to_proto(&digest)),
            execution_metadata: Some(metadata),
            ..ActionResult::default()
        }
    }

    /// Answers requests for live output from the content of `written`.
    pub(crate) async fn serve_output(&self, written: Arc<Mutex<Vec<u8>>>) {
        let subject = bus::Subject::ExecutorOutput(self.id.clone()).to_string();
        let mut questions = self.bus.client().subscribe(subject).await.unwrap();
        self.bus.jetstream().query_account().await.unwrap();
        let bus = self.bus.clone();
        tokio::spawn(async move {
            while let Some(message) = questions.next().await {
                let question = LiveOutputRequest::from_json(&message.payload).unwrap();
                let offset = usize::try_from(question.offset).unwrap();
                let data = written.lock().get(offset..).unwrap_or_default().to_vec();
                let reply = LiveOutputReply { data: STANDARD.encode(data), complete: false };
                tokio::time::sleep(Duration::from_millis(20)).await;
                bus.client().publish(message.reply.unwrap(), reply.to_json()).await.unwrap();
            }
        });
    }
}
