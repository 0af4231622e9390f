//! Waits until a server on the loopback interface of a private network answers.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::Signal;

use crate::network::enter;
use crate::private_network::{PrivateNetwork, Probe, Question};

/// Pause between two attempts: a server that starts refuses connections at once.
const PAUSE: Duration = Duration::from_millis(10);
/// Time limits of one attempt: to connect, and for each part of an answer.
const CONNECT: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(5);
/// Maximum bytes of the first line of an answer that are read: its beginning says enough.
const LINE_BYTES: usize = 64;

impl Question {
    fn is_answered(&self) -> io::Result<bool> {
        let connect =
            |port: u16| TcpStream::connect_timeout(&SocketAddr::from((self.address, port)), CONNECT);
        match &self.probe {
            Probe::Tcp(port) => connect(*port).map(|_| true),
            Probe::Http { port, path } => {
                let mut stream = connect(*port)?;
                stream.set_read_timeout(Some(ANSWER))?;
                stream.set_write_timeout(Some(ANSWER))?;
                let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
                stream.write_all(request.as_bytes())?;
                // Not the whole answer: the server may keep the connection open.
                let mut line = Vec::with_capacity(LINE_BYTES);
                BufReader::new(stream).take(LINE_BYTES as u64).read_until(b'\n', &mut line)?;
                Ok(is_success(&line))
            }
        }
    }
}

/// Whether an answer begins with a status from 200 to 399.
fn is_success(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let mut words = text.split_whitespace();
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    let status = words.next().and_then(|status| status.parse::<u16>().ok());
    is_http && status.is_some_and(|status| (200..400).contains(&status))
}

/// The process of [`wait_until`]: ends without error as soon as the question is answered.
pub(crate) fn run(network: PrivateNetwork, question: &Question) -> io::Result<()> {
    // The process that waits for it may be killed.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    enter(network)?;
    // Refused connections are what is waited out.
    while !question.is_answered().unwrap_or(false) {
        sleep(PAUSE);
    }
    Ok(())
}

/// Returns when a server at `address`, in the network of the shim with this process id, answers `probe`. Dropping it ends the
/// process that asks. `program` is that of the shim.
///
/// Fails if that process cannot be started or cannot enter the network.
pub async fn wait_until(program: &Path, shim: u32, (address, probe): (Ipv4Addr, &Probe)) -> io::Result<()> {
    let question = Question { address, probe: probe.clone() };
    let mut command = tokio::process::Command::new(std::path::absolute(program)?);
    command.args(["shim", "--network"]).arg(PrivateNetwork::Of(shim).text());
    command.args(question.arguments()).env_clear().current_dir("/").kill_on_drop(true);
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output().await?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("the process that waits for a server ended: {said}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_answer_on_a_connection_that_stays_open_is_read_at_once() {
        let server = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        let (keep, end) = std::sync::mpsc::channel::<()>();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            stream.write_all(b"HTTP/1.1 204 X\r\n").unwrap();
            // Held until the answer was read.
            let _ = end.recv();
        });
        let begun = std::time::Instant::now();
        let probe = Probe::Http { port, path: "/".to_owned() };
        assert!(Question { address: Ipv4Addr::LOCALHOST, probe }.is_answered().unwrap());
        assert!(begun.elapsed() < ANSWER);
        drop(keep);
        serving.join().unwrap();
    }

    #[test]
    fn an_answer_is_a_success_by_its_status() {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\n", true),
            ("HTTP/1.0 302 Found\r\n", true),
            ("HTTP/1.1 204\r\n", true),
            ("HTTP/1.1 503 Service Unavailable\r\n", false),
            ("HTTP/1.1 404 Not Found", false),
            ("HTTP/1.1 2000 OK", false),
            ("220 mail.example ESMTP", false),
            ("", false),
        ] {
            assert_eq!(is_success(answer.as_bytes()), expected, "{answer:?}");
        }
    }
}
