//! Uploads the inputs of tasks to the farm's store. Many tasks send at once: requests that arrive while a round is in
//! flight are sent together in the next round, in few calls.

use std::{collections::HashMap, sync::Arc};

use invariant::impossible;
use model::BlobDigest;
use remote::{Remote, RemoteError, Source};
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    task::{JoinHandle, JoinSet},
};

use crate::task_error::TaskError;

/// Maximum number of tasks whose blobs are sent in one round.
const ROUND: usize = 256;
/// Maximum number of concurrent rounds: a slow one does not delay all others.
const ROUNDS: usize = 4;

type Blobs = HashMap<BlobDigest, Source>;
type Sent = Result<(), Arc<RemoteError>>;

struct UploadRequest {
    blobs: Blobs,
    sent: oneshot::Sender<Sent>,
}

/// Sends blobs that the farm's store lacks. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Uploads {
    requests: mpsc::Sender<UploadRequest>,
    _task: Arc<Task>,
}

struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Uploads {
    /// Starts uploading to the store behind `remote`.
    pub(crate) fn start(remote: Remote) -> Self {
        let (requests, incoming) = mpsc::channel(ROUND);
        let task = Arc::new(Task(tokio::spawn(serve(remote, incoming))));
        Self { requests, _task: task }
    }

    /// Returns when the store has all of them.
    pub(crate) async fn send(&self, blobs: Blobs) -> Sent {
        let (sent, answer) = oneshot::channel();
        let ended = || {
            Arc::new(RemoteError::Answer { what: "uploading".to_owned(), why: "the run is over".to_owned() })
        };
        self.requests.send(UploadRequest { blobs, sent }).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

async fn serve(remote: Remote, mut incoming: mpsc::Receiver<UploadRequest>) {
    let permits = Arc::new(Semaphore::new(ROUNDS));
    let mut rounds = JoinSet::new();
    loop {
        while rounds.try_join_next().is_some() {}
        // Acquired before requests are received, so that requests arriving in the meantime join this round.
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            impossible!("the semaphore of the upload rounds is closed");
            return;
        };
        let mut requests = Vec::new();
        if incoming.recv_many(&mut requests, ROUND).await == 0 {
            while rounds.join_next().await.is_some() {}
            return;
        }
        let remote = remote.clone();
        rounds.spawn(async move {
            round(&remote, requests).await;
            drop(permit);
        });
    }
}

async fn round(remote: &Remote, requests: Vec<UploadRequest>) {
    let all: Blobs = requests
        .iter()
        .flat_map(|request| &request.blobs)
        .map(|(digest, from)| (*digest, from.clone()))
        .collect();
    let together: Sent = remote.upload(&all).await.map(drop).map_err(Arc::new);
    let is_bad = matches!(&together, Err(error) if matches!(TaskError::from(&**error), TaskError::Own(_)));
    let alone = is_bad && requests.len() > 1;
    for UploadRequest { blobs, sent } in requests {
        // A fault of one request must not fail the others.
        let result =
            if alone { remote.upload(&blobs).await.map(drop).map_err(Arc::new) } else { together.clone() };
        // A cancelled sender has dropped its receiver.
        let _ = sent.send(result);
    }
}
