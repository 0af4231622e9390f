//! A relay between the client library and nats-server, for connections on which strangers' messages arrive.
//!
//! The library (async-nats 0.51) closes its connection when it cannot parse a message, and a stream delivers that message
//! again at the next one. The relay replaces the headers of such a message, so that its reader can reject it.

mod frames;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use async_nats::ServerAddr;
use bytes::BytesMut;
use credentials::Server;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};
use uuid::Uuid;

/// Time limit for each step of opening a connection.
const OPENED_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of connections, most of which are from other processes of the machine.
const CONNECTIONS_MAX: usize = 8;
/// Maximum size of the lines that open a connection, in bytes: a server lists its cluster in the first one.
const LINE_BYTES_MAX: usize = 64 << 10;
const CONNECT: &[u8] = b"CONNECT ";
const INFO: &[u8] = b"INFO ";
const LINE_END: &[u8] = b"\r\n";

/// A relay, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Screen {
    address: SocketAddr,
    /// Appended to the name of a connection: other users of the machine reach the address as well.
    token: String,
    _accepting: AbortOnDropHandle<()>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// What a relay needs to reach a server.
struct Target {
    server: Server,
    token: String,
    servers: Mutex<Servers>,
}

/// The servers of the cluster, of which one is tried at each connection.
struct Servers {
    all: Vec<ServerAddr>,
    next: usize,
}

impl Servers {
    fn next(&mut self) -> Option<ServerAddr> {
        let address = self.all.get(self.next % self.all.len().max(1)).cloned();
        self.next = self.next.wrapping_add(1);
        address
    }

    fn add(&mut self, found: &Value) {
        for address in found.as_array().into_iter().flatten().filter_map(Value::as_str) {
            let Ok(address) = address.parse::<ServerAddr>() else { continue };
            if !self.all.iter().any(|known| known.host() == address.host() && known.port() == address.port())
            {
                self.all.push(address);
            }
        }
    }
}

/// What the relay passes on of the bytes of a server, which arrive in these pieces.
pub fn screened(pieces: &[&[u8]]) -> io::Result<Vec<u8>> {
    let (mut unread, mut passed) = (BytesMut::new(), BytesMut::new());
    for piece in pieces {
        unread.extend_from_slice(piece);
        frames::pass(&mut unread, &mut passed)?;
    }
    Ok(passed.to_vec())
}

impl Screen {
    /// Starts a relay to `server`, which has these addresses.
    pub(crate) async fn start(server: &Server, addresses: Vec<ServerAddr>) -> io::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let token = format!("#{}", Uuid::new_v4().simple());
        let servers = Mutex::new(Servers { all: addresses, next: 0 });
        let target = Arc::new(Target { server: server.clone(), token: token.clone(), servers });
        let accepting = tokio::spawn(async move {
            // Its tasks end with it.
            let mut relays = tokio::task::JoinSet::new();
            loop {
                match listener.accept().await {
                    // One is ours, and those of other processes end when they introduce themselves.
                    Ok(_) if relays.len() >= CONNECTIONS_MAX => {}
                    Ok((client, _)) => {
                        relays.spawn(Arc::clone(&target).relay(client));
                    }
                    Err(error) => {
                        warn!(%error, "cannot accept a connection to the relay of nats-server");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
                while relays.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, token, _accepting: AbortOnDropHandle::new(accepting) })
    }

    /// Address of the relay, for the client library.
    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// The name that a connection through the relay has to have, to be called `name` by the server.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{name}{}", self.token)
    }
}

impl Target {
    async fn relay(self: Arc<Self>, client: TcpStream) {
        if let Err(error) = self.relayed(client).await {
            debug!(%error, "a connection through the relay of nats-server ended");
        }
    }

    async fn relayed(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let (server, mut unread) = timeout(OPENED_WITHIN, self.open(&mut client)).await??;
        let (mut from_server, mut to_server) = tokio::io::split(server);
        let (mut from_client, mut to_client) = client.into_split();
        let sending = tokio::io::copy(&mut from_client, &mut to_server);
        let receiving = async {
            let mut out = BytesMut::new();
            loop {
                let passed = frames::pass(&mut unread, &mut out)?;
                for info in passed.infos {
                    out.extend_from_slice(&self.info(&info)?);
                }
                if passed.replaced > 0 {
                    warn!(count = passed.replaced, "messages arrived that cannot be parsed");
                }
                to_client.write_all(&out).await?;
                out.clear();
                if from_server.read_buf(&mut unread).await? == 0 {
                    return Ok::<_, io::Error>(());
                }
            }
        };
        tokio::select! {
            sent = sending => sent.map(drop),
            received = receiving => received,
        }
    }

    /// Opens a connection to a server for this client; also returns what was read after the first line of the server.
    async fn open(&self, client: &mut TcpStream) -> io::Result<(Box<dyn Stream>, BytesMut)> {
        let address = self.servers.lock().next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut plain = TcpStream::connect((address.host(), address.port())).await?;
        plain.set_nodelay(true)?;
        let mut unread = BytesMut::new();
        let line = line(&mut plain, &mut unread).await?;
        let info = line.strip_prefix(INFO).ok_or_else(|| invalid("the server does not speak NATS"))?;
        let tls = self.server.credentials.tls.client_config().map_err(io::Error::other)?;
        let needs_tls = address.tls_required() || is_set(info, "tls_required")?;
        let server: Box<dyn Stream> = match tls {
            // What comes before the handshake may be from someone else.
            Some(_) if !unread.is_empty() => {
                return Err(invalid("the server sent more before the TLS handshake"));
            }
            Some(tls) => self.encrypted(plain, tls, &address).await?,
            None if needs_tls => return Err(invalid("the server requires TLS, and no authority is set")),
            None => Box::new(plain),
        };
        client.write_all(&self.info(info)?).await?;
        self.introduce(client, server).await.map(|server| (server, unread))
    }

    async fn encrypted(
        &self,
        plain: TcpStream,
        tls: tokio_rustls::rustls::ClientConfig,
        address: &ServerAddr,
    ) -> io::Result<Box<dyn Stream>> {
        let name = ServerName::try_from(address.host().to_owned()).map_err(io::Error::other)?;
        Ok(Box::new(TlsConnector::from(Arc::new(tls)).connect(name, plain).await?))
    }

    /// Passes on how the client introduces itself, which proves that it belongs to this process.
    async fn introduce(
        &self,
        client: &mut TcpStream,
        mut server: Box<dyn Stream>,
    ) -> io::Result<Box<dyn Stream>> {
        let mut unread = BytesMut::new();
        let line = line(client, &mut unread).await?;
        let connect =
            line.strip_prefix(CONNECT).ok_or_else(|| invalid("the client does not introduce itself"))?;
        let mut connect: Value = serde_json::from_slice(connect)?;
        let name =
            connect.get("name").and_then(Value::as_str).and_then(|name| name.strip_suffix(&self.token));
        let name = name.ok_or_else(|| invalid("a client of another process"))?.to_owned();
        if let Some(stated) = connect.get_mut("name") {
            *stated = Value::String(name);
        }
        let mut out = [CONNECT, connect.to_string().as_bytes(), LINE_END].concat();
        out.extend_from_slice(&unread);
        server.write_all(&out).await?;
        server.flush().await?;
        Ok(server)
    }

    /// How a server describes itself, as the client is to see it: without TLS and without other servers.
    fn info(&self, info: &[u8]) -> io::Result<Vec<u8>> {
        let mut info: Value = serde_json::from_slice(info)?;
        if let Some(fields) = info.as_object_mut() {
            self.servers.lock().add(fields.get("connect_urls").unwrap_or(&Value::Null));
            for hidden in ["connect_urls", "tls_required", "tls_available", "tls_verify"] {
                fields.remove(hidden);
            }
        }
        Ok([INFO, info.to_string().as_bytes(), LINE_END].concat())
    }
}

fn is_set(info: &[u8], field: &str) -> io::Result<bool> {
    let info: Value = serde_json::from_slice(info)?;
    Ok(info.get(field).and_then(Value::as_bool).unwrap_or_default())
}

/// The next line of `from`, without its end. `unread` is what was read after it.
async fn line(from: &mut (impl AsyncRead + Unpin), unread: &mut BytesMut) -> io::Result<BytesMut> {
    loop {
        if let Some(line) = frames::line(unread) {
            return Ok(line);
        }
        if unread.len() > LINE_BYTES_MAX {
            return Err(invalid("a line is too long"));
        }
        if from.read_buf(unread).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
