//! A worker that is slow to claim an offered build.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use farm::Farm;
use model::{Millis, OfferVerdict, Outcome, Phase};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp},
    sync::mpsc,
    time::Instant,
};

use super::by_hand::Hand;
use crate::check::script;

/// A proxy that forwards everything to a server after an adjustable delay.
struct Slow {
    address: String,
    delay_ms: Arc<AtomicU64>,
}

impl Slow {
    async fn before(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let delay_ms = Arc::new(AtomicU64::new(0));
        let delay = Arc::clone(&delay_ms);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = TcpStream::connect(&server).await.unwrap().into_split();
                tokio::spawn(pass(from_client, to_server, Arc::clone(&delay)));
                tokio::spawn(pass(from_server, to_client, Arc::clone(&delay)));
            }
        });
        Self { address, delay_ms }
    }

    fn set(&self, delay: Duration) {
        self.delay_ms.store(delay.as_millis().try_into().unwrap(), Ordering::Relaxed);
    }
}

async fn pass(mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf, delay_ms: Arc<AtomicU64>) {
    let (sender, mut receiver) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let write = async move {
        while let Some((at, data)) = receiver.recv().await {
            tokio::time::sleep_until(at).await;
            if to.write_all(&data).await.is_err() {
                return;
            }
        }
    };
    let read = async move {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let at = Instant::now() + Duration::from_millis(delay_ms.load(Ordering::Relaxed));
            let _ = sender.send((at, buffer[..count].to_vec()));
        }
    };
    tokio::join!(read, write);
}

#[tokio::test]
async fn a_build_whose_lease_took_too_long_is_left_to_others() {
    const DELAY: Duration = Duration::from_millis(300);
    let farm = Farm::builder().only(&["enqueuer"]).workspaces(1).start().await;
    let slow = Slow::before(farm.servers.nats_address()).await;
    let hand = Hand::of(farm, &[("FOREBAY_NATS_URL", &format!("nats://{}", slow.address))]).await;
    let key = hand.farm.submit("g", script("true")).await;
    slow.set(DELAY);
    // The offer reaches the worker after one delay, is read after three, and the lease is held after five.
    let verdict = hand.offer(&key, None, Millis::of_this_machine().after(4 * DELAY)).await;
    slow.set(Duration::ZERO);
    assert_eq!(verdict, OfferVerdict::Busy);
    let (_, record) = hand.farm.bus().records().latest(&key).await.unwrap().unwrap();
    assert_eq!(record.phase, Phase::Enqueued);
    // Its lease does not keep other workers from the build either.
    assert_eq!(
        hand.offer(&key, None, Millis::of_this_machine().after(farm::SOON)).await,
        OfferVerdict::Started
    );
    assert_eq!(hand.end(&key).await.result().unwrap().outcome, Outcome::Succeeded);
}
