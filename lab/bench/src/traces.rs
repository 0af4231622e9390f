//! `forebay bench traces`: what traces cost builds and actions, with a receiver and with one that never answers.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use clap::Args;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use crate::{
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    memory::Memory,
    processor::ProcessorTimes,
    progress::say,
    rates::BuildLoad,
    report::BenchReport,
    rounds::{Load, items_in},
    statistics::median_and_worst,
    work::{ActionLoad, Work},
};

/// Options of `forebay bench traces`, which starts farms in temporary folders.
#[derive(Debug, Args)]
pub(crate) struct TracesArgs {
    /// Duration of each window in seconds
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Number of windows of each farm
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
}

/// Concurrent requests of the client that executes actions.
const IN_FLIGHT: usize = 64;
/// Items of the first batch, which is not measured.
const WARM_UP: u64 = 300;

/// Where a farm sends its traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traces {
    Off,
    All,
    Unanswered,
}

impl Traces {
    const EACH: [Self; 3] = [Self::Off, Self::All, Self::Unanswered];

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
pub(crate) async fn measure(args: &TracesArgs) -> Result<BenchReport, BenchError> {
    let receiver = Receiver::start().await?;
    let mut memory = Memory::default();
    let mut farms = Vec::new();
    for traces in Traces::EACH {
        farms.push((traces, start(traces, &receiver).await?));
    }
    let mut figures = Figures::default();
    say("measuring builds of /bin/true on three farms in turn");
    let mut runs = Vec::new();
    for (traces, farm) in &farms {
        runs.push(Run::new(*traces, farm, BuildLoad { farm }));
    }
    figures.part("builds", alternate(&mut runs, args).await?.figures("build"));
    say("measuring actions on three farms in turn");
    let mut works = Vec::new();
    for (traces, farm) in &farms {
        works.push((*traces, farm, Work::new(farm.remote().await?).await?));
    }
    let load = |work| ActionLoad { work, in_flight: IN_FLIGHT };
    let mut runs: Vec<_> =
        works.iter().map(|(traces, farm, work)| Run::new(*traces, farm, load(work))).collect();
    figures.part("actions", alternate(&mut runs, args).await?.figures("action"));
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

/// A load on one of the farms, and its windows.
struct Run<'a, L> {
    traces: Traces,
    farm: &'a BenchFarm,
    load: L,
    /// Items of the last window, and its length.
    last: (u64, Duration),
    rates: Vec<f64>,
    processor_us: Vec<f64>,
}

impl<'a, L: Load> Run<'a, L> {
    fn new(traces: Traces, farm: &'a BenchFarm, load: L) -> Self {
        let (last, rates, processor_us) = ((0, Duration::ZERO), Vec::new(), Vec::new());
        Self { traces, farm, load, last, rates, processor_us }
    }

    async fn window(&mut self, items: u64) -> Result<(), BenchError> {
        let batch = self.load.prepare(items).await?;
        let (used, begun) = (ProcessorTimes::read(self.farm)?, Instant::now());
        self.load.run(batch).await?;
        self.last = (items, begun.elapsed());
        let used = ProcessorTimes::read(self.farm)?.since(&used);
        self.rates.push(items as f64 / self.last.1.as_secs_f64());
        self.processor_us.push(used.of_farm() / items as f64);
        Ok(())
    }
}

/// Medians of the windows of each farm.
struct Compared(Vec<(Traces, f64, f64)>);

/// Runs windows of the farms in turn, so that a slow phase of the machine is shared by all.
async fn alternate<L: Load>(runs: &mut [Run<'_, L>], args: &TracesArgs) -> Result<Compared, BenchError> {
    for run in runs.iter_mut() {
        run.window(WARM_UP).await?;
        (run.rates, run.processor_us) = (Vec::new(), Vec::new());
    }
    for round in 0..args.rounds {
        // Another farm is the first in each round.
        runs.rotate_left(usize::from(round > 0));
        for run in runs.iter_mut() {
            let items = items_in(Duration::from_secs(args.seconds), run.last).max(WARM_UP);
            run.window(items).await?;
        }
    }
    let median = |values: &mut Vec<f64>| median_and_worst(values).0;
    let compared =
        runs.iter_mut().map(|run| (run.traces, median(&mut run.rates), median(&mut run.processor_us)));
    Ok(Compared(compared.collect()))
}

impl Compared {
    fn of(&self, traces: Traces) -> (f64, f64) {
        let found = self.0.iter().find(|(of, ..)| *of == traces);
        found.map_or((f64::NAN, f64::NAN), |(_, rate, processor)| (*rate, *processor))
    }

    fn figures(&self, item: &str) -> Figures {
        let mut figures = Figures::default();
        let (rate_off, processor_off) = self.of(Traces::Off);
        for traces in Traces::EACH {
            let (rate, processor) = self.of(traces);
            let mut part = Figures::default();
            part.figure("per_s", &format!("{item}s {traces}"), rate, "/s");
            part.figure("processor_us", &format!("processor time per {item} {traces}"), processor, "us");
            if traces != Traces::Off {
                part.figure(
                    "rate_ratio",
                    &format!("{item}s {traces}, to those without"),
                    rate / rate_off,
                    "",
                );
                let name = format!("processor time per {item} {traces}, to that without");
                part.figure("processor_ratio", &name, processor / processor_off, "");
            }
            figures.part(traces.name(), part);
        }
        figures
    }
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
