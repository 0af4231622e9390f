//! redis-server, or valkey-server, as a child process.

use std::{collections::BTreeMap, ffi::OsString, io, path::PathBuf, time::Duration};

use bus::Patience;
use credentials::Server;
use index::Index;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tracing::warn;

use crate::{
    child::Spec,
    error::UpError,
    find::{self, Program},
    folder::Folder,
    names, ports,
    secure::Secure,
};

const PROGRAM: Program = Program {
    name: names::REDIS,
    variable: "FOREBAY_REDIS_SERVER",
    files: &["redis-server", "valkey-server"],
    remedy: "run `make tools`, or install the package redis-server or valkey (Debian, Homebrew), \
             or set FOREBAY_REDIS_SERVER to its path",
};
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Finds the program of the server.
pub(crate) fn find() -> Result<PathBuf, UpError> {
    find::find(&PROGRAM)
}

/// Specification of the server on `port`. It does not persist its data, which is rebuilt from the bus.
pub(crate) fn spec(program: PathBuf, folder: &Folder, port: u16, secure: Option<&Secure>) -> Spec {
    let mut args: Vec<OsString> = [
        ["--bind", "127.0.0.1"],
        ["--save", ""],
        ["--appendonly", "no"],
        ["--maxmemory-policy", "noeviction"],
    ]
    .into_iter()
    .flatten()
    .map(OsString::from)
    .collect();
    args.extend(["--dir".into(), folder.root().join("redis").into()]);
    args.extend(listening(folder, port, secure));
    Spec {
        name: names::REDIS.to_owned(),
        program,
        args,
        env: BTreeMap::new(),
        log: folder.log(names::REDIS),
        lock: None,
        tethered: false,
        remember: |_| BTreeMap::new(),
    }
}

/// The port, with TLS and users of a secured farm: there only processes of the farm connect, which have a certificate.
fn listening(folder: &Folder, port: u16, secure: Option<&Secure>) -> Vec<OsString> {
    let port = port.to_string();
    let Some(secure) = secure else { return vec!["--port".into(), port.into()] };
    let mut args: Vec<OsString> =
        ["--port", "0", "--tls-port", &port, "--tls-auth-clients", "yes"].map(Into::into).to_vec();
    args.extend(["--tls-protocols".into(), "TLSv1.3".into()]);
    for (option, file) in [
        ("--tls-cert-file", "server.pem"),
        ("--tls-key-file", "server.key"),
        ("--tls-ca-cert-file", "ca.pem"),
    ] {
        args.extend([option.into(), secure.path(file).into()]);
    }
    let users = folder.root().join("redis").join(Secure::USERS_OF_REDIS);
    args.extend(["--aclfile".into(), users.into()]);
    args
}

/// Waits until a server admits this process, which only the one with the users of this farm does.
pub(crate) async fn admits(server: &Server) -> bool {
    while Index::connect(server, false).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}

/// Waits until a server answers on `port`. Returns whether it is the process `pid`.
pub(crate) async fn answers(port: u16, pid: impl Fn() -> Option<u32>) -> bool {
    loop {
        match ask(&format!("127.0.0.1:{port}"), "INFO server\r\n", "process_id:").await {
            Ok(answer) => return process_id(&answer).is_some_and(|found| Some(found) == pid()),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Waits until the external server at `url` answers.
pub(crate) async fn connect(url: &str, patience: Patience) -> Result<(), UpError> {
    let address = ports::address_of(url, 6379);
    let mut told = false;
    loop {
        // An error, e.g. a missing password, is an answer too.
        let Err(error) = ask(&address, "PING\r\n", "\r\n").await else { return Ok(()) };
        if patience == Patience::None {
            return Err(UpError::Unreachable { name: "Redis", url: url.to_owned(), source: error });
        }
        if !std::mem::replace(&mut told, true) {
            warn!(url, %error, "waiting for Redis");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Sends a command and reads until the answer contains `wanted` and the rest of its line, or is an error.
async fn ask(address: &str, command: &str, wanted: &str) -> io::Result<String> {
    let talk = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(command.as_bytes()).await?;
        let mut answer = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&answer);
            let found = text
                .split_once(wanted)
                .is_some_and(|(_, rest)| wanted.ends_with('\n') || rest.contains('\n'));
            if found || (text.starts_with('-') && text.ends_with('\n')) || answer.len() > ANSWER_BYTES_MAX {
                return Ok(text.into_owned());
            }
            if stream.read_buf(&mut answer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    };
    match tokio::time::timeout(Duration::from_secs(2), talk).await {
        Ok(answer) => answer,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn process_id(answer: &str) -> Option<u32> {
    let (_, rest) = answer.split_once("process_id:")?;
    rest.lines().next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::process_id;

    #[test]
    fn the_process_id_is_read() {
        assert_eq!(process_id("$90\r\n# Server\r\nprocess_id:4711\r\nrun_id:ab\r\n"), Some(4711));
        assert_eq!(process_id("-NOAUTH Authentication required.\r\n"), None);
    }
}
