//! A SOCKS server through which git fetches over HTTP: git follows redirects and resolves names by itself, so only
//! where its connections are made can their addresses be checked.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use download::{Reach, ReachError};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

/// The server of one preparation. Its connections end when it is dropped.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    refused: Refused,
    _serving: AbortOnDropHandle<()>,
}

/// Why a connection was refused, the last time that one was.
type Refused = Arc<Mutex<Option<String>>>;

/// Replies of SOCKS 5.
const SUCCEEDED: u8 = 0;
const NOT_ALLOWED: u8 = 2;
const UNREACHABLE: u8 = 4;
const NOT_SUPPORTED: u8 = 7;

impl Relay {
    /// Starts a server on a loopback address that connects to hosts within `reach`.
    pub(crate) async fn start(reach: Reach) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let refused = Refused::default();
        let serving = tokio::spawn(serve(listener, reach, Arc::clone(&refused)));
        Ok(Self { address, refused, _serving: AbortOnDropHandle::new(serving) })
    }

    /// Why a connection was refused, if one was.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.refused.lock().clone()
    }
}

async fn serve(listener: TcpListener, reach: Reach, refused: Refused) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let (reach, refused) = (reach.clone(), Arc::clone(&refused));
                connections.spawn(async move {
                    if let Err(error) = relay(client, &reach, &refused).await {
                        debug!(%error, "a connection of git ended");
                    }
                });
            }
            Err(error) => debug!(%error, "a connection of git was not accepted"),
        }
        // Ended connections need no attention.
        while connections.try_join_next().is_some() {}
    }
}

async fn relay(mut client: TcpStream, reach: &Reach, refused: &Refused) -> io::Result<()> {
    let _version = client.read_u8().await?;
    let methods = client.read_u8().await?;
    client.read_exact(&mut vec![0; methods.into()]).await?;
    client.write_all(&[5, 0]).await?;
    let [_version, command, _reserved, kind] = bytes(&mut client).await?;
    let host = match kind {
        1 => Ipv4Addr::from(bytes::<4>(&mut client).await?).to_string(),
        3 => {
            let mut name = vec![0; client.read_u8().await?.into()];
            client.read_exact(&mut name).await?;
            String::from_utf8_lossy(&name).into_owned()
        }
        4 => Ipv6Addr::from(bytes::<16>(&mut client).await?).to_string(),
        _ => return reply(&mut client, NOT_SUPPORTED).await,
    };
    let port = client.read_u16().await?;
    // CONNECT is the only command that fetching needs.
    if command != 1 {
        return reply(&mut client, NOT_SUPPORTED).await;
    }
    let addresses = match reach.resolve(&host, port).await {
        Ok(addresses) => addresses,
        Err(error @ ReachError::Closed { .. }) => {
            *refused.lock() = Some(error.to_string());
            return reply(&mut client, NOT_ALLOWED).await;
        }
        Err(ReachError::Unresolved { .. }) => return reply(&mut client, UNREACHABLE).await,
    };
    let Ok(mut server) = TcpStream::connect(addresses.as_slice()).await else {
        return reply(&mut client, UNREACHABLE).await;
    };
    reply(&mut client, SUCCEEDED).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

async fn bytes<const COUNT: usize>(client: &mut TcpStream) -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn reply(client: &mut TcpStream, code: u8) -> io::Result<()> {
    // The address that follows means nothing to those who connect.
    client.write_all(&[5, code, 0, 1, 0, 0, 0, 0, 0, 0]).await
}
