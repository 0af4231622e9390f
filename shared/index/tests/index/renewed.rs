//! Certificates of clients of Redis that are replaced while their processes run.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use access::{Authority, Certified, Purpose};
use credentials::{Credentials, PemFiles, Server};
use farm::{Guard, Port, Process, SOON, tool};
use index::Index;
use tokio::process::Command;

/// Starts a Redis that admits clients with a certificate of the authority in `clients`, a file of `folder`.
fn start(folder: &Path, port: &Port, guard: &Guard, clients: &str) -> Process {
    let path = |name: &str| folder.join(name).display().to_string();
    let mut command = Command::new(tool("redis-server"));
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--tls-auth-clients", "yes"]);
    command.args(["--dir", &folder.display().to_string(), "--tls-port", &port.number().to_string()]);
    command.args(["--tls-cert-file", &path("server.pem"), "--tls-key-file", &path("server.key")]);
    command.args(["--tls-ca-cert-file", &path(clients)]);
    Process::start("redis", command, &folder.join("redis.log"), guard)
}

fn authority() -> (Authority, Certified) {
    Authority::generate().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_lost_is_made_again_with_the_certificate_of_that_time() {
    let folder = tempfile::tempdir().unwrap();
    let (guard, port) = (Guard::start(folder.path()), Port::reserve());
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let ((servers, of_servers), (first, of_first), (second, of_second)) =
        (authority(), authority(), authority());
    let server = servers.certify(&["127.0.0.1".to_owned()], Purpose::Server).unwrap();
    let certify = |authority: &Authority| {
        let client = authority.certify(&[], Purpose::Client).unwrap();
        write("client.pem", &client.certificate);
        write("client.key", &client.key);
    };
    for (name, text) in [("server.pem", &server.certificate), ("server.key", &server.key)] {
        write(name, text);
    }
    for (name, authority) in [("servers.ca", of_servers), ("first.ca", of_first), ("second.ca", of_second)] {
        write(name, &authority.certificate);
    }
    certify(&first);
    let path = |name: &str| folder.path().join(name);
    let tls = PemFiles {
        authorities: Some(path("servers.ca")),
        certificate: Some((path("client.pem"), path("client.key"))),
    };
    let url = format!("rediss://127.0.0.1:{}", port.number());
    let redis = start(folder.path(), &port, &guard, "first.ca");
    let index =
        Index::connect(Server { url, credentials: Credentials { seed: None, tls } }, true).await.unwrap();
    index.memory_bytes().await.unwrap();
    drop(redis);
    let _redis = start(folder.path(), &port, &guard, "second.ca");
    // The old certificate is not admitted, and nothing replaces it yet.
    index.memory_bytes().await.unwrap_err();
    // Half of it is not used, and does not end the looking.
    let whole = second.certify(&[], Purpose::Client).unwrap();
    write("client.pem", &whole.certificate);
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        index.memory_bytes().await.unwrap_err();
    }
    certify(&second);
    let deadline = Instant::now() + SOON;
    while let Err(error) = index.memory_bytes().await {
        assert!(Instant::now() < deadline, "{error:?}");
    }
}
