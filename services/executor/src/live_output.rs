//! Serves the output of running actions to clients that follow it.

use std::{path::Path, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bus::Received;
use model::{LiveOutputReply, LiveOutputRequest, OutputStream};
use service::{ServiceError, Subscription};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tracing::debug;

use crate::{held_actions::Phase, shared::Shared};

/// Maximum number of bytes in one answer.
const PIECE: u64 = 256 << 10;
/// How long a request waits for new output.
const WAIT: Duration = Duration::from_secs(2);
/// Interval at which a file is polled while a request waits for it to grow.
const LOOK: Duration = Duration::from_millis(50);

/// Answers requests until the session ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let mut questions = Subscription::<LiveOutputRequest>::new(&shared.context.bus, &shared.id).await?;
    loop {
        tokio::spawn(answer(shared.clone(), questions.next().await?));
    }
}

async fn answer(shared: Arc<Shared>, question: Received<LiveOutputRequest>) {
    if !question.wants_answer() {
        return;
    }
    let (question, answering) = question.split();
    let (data, complete) = wait_for(&shared, &question).await;
    answering.send(&LiveOutputReply { data: STANDARD.encode(data), complete }).await;
}

/// The output from the offset on, and whether there will be no more from this executor.
async fn wait_for(shared: &Shared, question: &LiveOutputRequest) -> (Vec<u8>, bool) {
    let limit = tokio::time::Instant::now() + WAIT;
    loop {
        let Some(phase) = shared.actions.phase(&question.execution) else { return (Vec::new(), true) };
        if let Phase::Running(outputs) = phase {
            let path = match question.stream {
                OutputStream::Stdout => &outputs.stdout,
                OutputStream::Stderr => &outputs.stderr,
            };
            match read(path, question.offset).await {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return (data, false),
                Err(error) => debug!(%error, "cannot read live output yet"),
            }
        }
        if tokio::time::Instant::now() >= limit {
            return (Vec::new(), false);
        }
        tokio::select! {
            () = shared.actions.changed() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

async fn read(path: &Path, offset: u64) -> std::io::Result<Vec<u8>> {
    let mut file = tokio::fs::File::open(path).await?;
    file.seek(std::io::SeekFrom::Start(offset)).await?;
    let mut data = Vec::new();
    file.take(PIECE).read_to_end(&mut data).await?;
    Ok(data)
}
