//! `forebay bench traces`: what traces cost builds and actions, with a receiver and with one that never answers.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use crate::{
    alternation::{AlternationArgs, Variant, builds_and_actions},
    error::BenchError,
    farm::BenchFarm,
    memory::Memory,
    report::BenchReport,
};

/// Where a farm sends its traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traces {
    Off,
    All,
    Unanswered,
}

impl Variant for Traces {
    const EACH: &'static [Self] = &[Self::Off, Self::All, Self::Unanswered];

    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::All => "all",
            Self::Unanswered => "unanswered",
        }
    }
}

impl fmt::Display for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "without traces",
            Self::All => "with all traces sent",
            Self::Unanswered => "with a receiver that never answers",
        })
    }
}

/// Measures builds and actions on three farms in turn.
pub(crate) async fn measure(args: &AlternationArgs) -> Result<BenchReport, BenchError> {
    let receiver = Receiver::start().await?;
    let mut memory = Memory::default();
    let mut farms = Vec::new();
    for traces in Traces::EACH {
        farms.push((*traces, start(*traces, &receiver).await?));
    }
    let mut figures = builds_and_actions(&farms, args).await?;
    figures.figure(
        "received_mb",
        "traces received",
        receiver.bytes.load(Ordering::Relaxed) as f64 / 1e6,
        "MB",
    );
    for (_, farm) in farms {
        memory.note(&farm);
        farm.stop().await;
    }
    Ok(BenchReport::new("", figures, memory))
}

async fn start(traces: Traces, receiver: &Receiver) -> Result<BenchFarm, BenchError> {
    let address = match traces {
        Traces::Off => None,
        Traces::All => Some(receiver.answering),
        Traces::Unanswered => Some(receiver.silent),
    };
    let endpoint = address.map(|address| format!("http://{address}"));
    let settings = match &endpoint {
        None => vec![("OTEL_SDK_DISABLED", "true")],
        Some(endpoint) => vec![
            ("OTEL_SDK_DISABLED", "false"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_TRACES_SAMPLER", "always_on"),
        ],
    };
    BenchFarm::start_with(None, &["--sandbox", "none"], &settings).await
}

/// Two OTLP receivers over HTTP: one accepts everything, one reads and never answers.
struct Receiver {
    answering: SocketAddr,
    silent: SocketAddr,
    /// Bytes that the first one received.
    bytes: Arc<AtomicU64>,
}

impl Receiver {
    async fn start() -> Result<Self, BenchError> {
        let bytes = Arc::new(AtomicU64::new(0));
        let (answering, silent) = (listen(true, &bytes).await, listen(false, &bytes).await);
        let failed = |error: std::io::Error| BenchError::new("cannot listen for traces", &error);
        Ok(Self { answering: answering.map_err(failed)?, silent: silent.map_err(failed)?, bytes })
    }
}

/// Receives on a port of its own until the process ends.
async fn listen(answers: bool, bytes: &Arc<AtomicU64>) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, bytes) = (listener.local_addr()?, bytes.clone());
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let bytes = bytes.clone();
            // A connection that breaks is replaced by the sender.
            tokio::spawn(async move { receive(connection, answers, &bytes).await.ok() });
        }
    });
    Ok(address)
}

/// Reads requests with a known length.
async fn receive(connection: TcpStream, answers: bool, bytes: &AtomicU64) -> std::io::Result<()> {
    let mut connection = BufReader::new(connection);
    let mut line = String::new();
    let mut length = 0;
    let mut body = Vec::new();
    loop {
        line.clear();
        if connection.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let header = line.trim_end().to_ascii_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
        if !header.is_empty() {
            continue;
        }
        body.resize(length, 0);
        connection.read_exact(&mut body).await?;
        if answers {
            bytes.fetch_add(length as u64, Ordering::Relaxed);
            connection.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await?;
        }
    }
}
