//! The end of standard input: how a process learns that the one that started it has ended, whatever ended that one.

use std::io;

use tokio::sync::oneshot;

/// The option to stop at the end of standard input.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct StopAtEof {
    /// Stop when standard input ends: a program that holds the other end of a pipe takes this process with it,
    /// whatever ends that program
    #[arg(long)]
    stop_at_eof: bool,
}

impl StopAtEof {
    /// Returns at the end of standard input; without the option, never.
    pub async fn reached(self) {
        if self.stop_at_eof {
            ended().await;
        } else {
            std::future::pending::<()>().await;
        }
    }
}

/// Waits until every process has closed the other end of the standard input.
pub(crate) async fn ended() {
    let (sender, receiver) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        // An input that cannot be read has ended, too.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        drop(sender);
    });
    // The thread sends nothing: the end of the channel is the message.
    let _ = receiver.await;
}
