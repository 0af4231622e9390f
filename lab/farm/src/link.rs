//! A connection to nats-server that a test can cut.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

/// A proxy to nats-server for the processes that use its URL. It ends when it is dropped.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    state: watch::Sender<State>,
    task: JoinHandle<()>,
}

/// How a link is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// No data passes and no connection is closed, like an unplugged cable. Data sent during the cut arrives later.
    Silent,
    /// Connections are closed and new ones are refused, like a restarting router.
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    Cut(Cut),
}

impl Link {
    /// Starts a link to the server on `port` of this machine.
    pub(crate) async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let (state, changes) = watch::channel(State::Up);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connect(client, port, changes.clone()));
            }
        });
        Self { address, state, task }
    }

    /// URL `nats://127.0.0.1:PORT` of the link.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Blocks all data from now on.
    pub fn cut(&self, how: Cut) {
        self.state.send_replace(State::Cut(how));
    }

    /// Lets all data pass again.
    pub fn restore(&self) {
        self.state.send_replace(State::Up);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connect(client: TcpStream, port: u16, mut state: watch::Receiver<State>) {
    if !passable(&mut state).await {
        return;
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    // The end of one direction ends both.
    tokio::select! {
        () = pump(from_client, to_server, state.clone()) => {}
        () = pump(from_server, to_client, state.clone()) => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<State>) {
    let mut breaks = state.clone();
    let mut piece = vec![0; 64 << 10];
    loop {
        let length = tokio::select! {
            length = from.read(&mut piece) => length,
            // Also when the link itself is dropped.
            _ = breaks.wait_for(|state| *state == State::Cut(Cut::Broken)) => return,
        };
        let Some(piece) = length.ok().filter(|length| *length > 0).and_then(|length| piece.get(..length))
        else {
            return;
        };
        if !passable(&mut state).await || to.write_all(piece).await.is_err() {
            return;
        }
    }
}

/// Waits for the end of a silent cut; returns false when the link is broken.
async fn passable(state: &mut watch::Receiver<State>) -> bool {
    state.wait_for(|state| *state != State::Cut(Cut::Silent)).await.is_ok_and(|state| *state == State::Up)
}
