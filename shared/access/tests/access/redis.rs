//! The generated users of a real Redis.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    time::Duration,
};

use access::{Slot, Who};
use farm::{Guard, Port, Process, SOON, tool};
use tempfile::TempDir;
use tokio::{process::Command, time::timeout};

use crate::support::{Acks, World, changes};

struct Redis {
    port: Port,
    _process: Process,
    _guard: Guard,
    _folder: TempDir,
}

impl Redis {
    async fn start(acl: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("forebay-test-").tempdir().unwrap();
        let (guard, port) = (Guard::start(folder.path()), Port::reserve());
        let file = folder.path().join("users.acl");
        fs::write(&file, acl).unwrap();
        let number = port.number().to_string();
        let mut command = Command::new(tool("redis-server"));
        command.args(["--port", &number, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(folder.path()).arg("--aclfile").arg(&file);
        let process = Process::start("redis", command, &folder.path().join("redis.log"), &guard);
        let redis = Self { port, _process: process, _guard: guard, _folder: folder };
        let ready = async {
            while TcpStream::connect(("127.0.0.1", redis.port.number())).is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(SOON, ready).await.unwrap();
        redis
    }

    /// The answers to commands of one connection, which authenticates as `user` first if there is one.
    fn ask(&self, user: Option<(&str, &str)>, commands: &[&str]) -> Vec<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port.number())).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut ask = |command: &str| {
            write!(stream, "{command}\r\n").unwrap();
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        if let Some((name, password)) = user {
            assert_eq!(ask(&format!("AUTH {name} {password}")), "+OK");
        }
        commands.iter().map(|command| ask(command)).collect()
    }
}

fn password(world: &World, name: &str) -> String {
    let who: Who = name.parse().unwrap();
    world.seeds.read(&who, Slot::Current).unwrap().unwrap().redis_password()
}

#[tokio::test(flavor = "multi_thread")]
async fn services_use_the_index_and_nothing_else() {
    let world = World::prepare(Acks::First, &changes());
    let redis = Redis::start(&access::redis_acl(&world.access)).await;
    let secret = password(&world, "enqueuer/1");
    let user = Some(("enqueuer.1", secret.as_str()));
    let works = redis.ask(user, &["PING", "SET forebay:{index}:x 1", "SET forebay:{actions}:2:x 1"]);
    assert_eq!(works, ["+PONG", "+OK", "+OK"]);
    for command in [
        "FLUSHALL",
        "FLUSHDB",
        "CONFIG GET *",
        "KEYS *",
        "EVAL \"return 1\" 0",
        "SCRIPT FLUSH",
        "ACL LIST",
        "ACL LOAD",
        "SAVE",
        "SHUTDOWN",
        "REPLICAOF 127.0.0.1 1",
        "MODULE LIST",
        "MONITOR",
        "SUBSCRIBE x",
        "GET other",
        "SET forebay:other 1",
    ] {
        let answer = redis.ask(user, &[command]).remove(0);
        assert!(answer.starts_with("-NOPERM"), "{command}: {answer}");
    }
    // A script runs with the rights of its caller, also for keys that it does not declare.
    let script = "SCRIPT LOAD \"return redis.call('GET', 'other')\"";
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port.number())).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    write!(stream, "AUTH enqueuer.1 {secret}\r\n{script}\r\n").unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut lines = [const { String::new() }; 3];
    for line in &mut lines {
        reader.read_line(line).unwrap();
    }
    let sha = lines[2].trim();
    let answer = redis.ask(user, &[&format!("EVALSHA {sha} 0")]).remove(0);
    assert!(answer.starts_with('-') && answer.contains("access"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_and_services_without_an_index_have_no_user() {
    let world = World::prepare(Acks::First, &changes());
    let acl = access::redis_acl(&world.access);
    assert!(!acl.contains("worker") && !acl.contains("executor") && !acl.contains("user web"));
    let redis = Redis::start(&acl).await;
    let answers = redis.ask(None, &["PING", "AUTH enqueuer.1 wrong", "AUTH default x", "AUTH worker.w-1 x"]);
    assert!(answers[0].starts_with("-NOAUTH"), "{answers:?}");
    assert!(answers[1..].iter().all(|answer| answer.starts_with("-WRONGPASS")), "{answers:?}");
    // The seed itself is not the password.
    let who: Who = "enqueuer/1".parse().unwrap();
    let seed = world.seeds.read(&who, Slot::Current).unwrap().unwrap();
    let answer = redis.ask(None, &[&format!("AUTH enqueuer.1 {}", seed.reveal())]).remove(0);
    assert!(answer.starts_with("-WRONGPASS"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_have_redis_read_its_users_again() {
    let world = World::prepare(Acks::First, &changes());
    let redis = Redis::start(&access::redis_acl(&world.access)).await;
    let secret = password(&world, "operator/1");
    assert_eq!(redis.ask(Some(("operator.1", &secret)), &["ACL LOAD"]), ["+OK"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_the_index_connects_with_its_user() {
    let world = World::prepare(Acks::First, &changes());
    let redis = Redis::start(&access::redis_acl(&world.access)).await;
    let secret = password(&world, "dispatcher/1");
    let url = format!("redis://dispatcher.1:{secret}@127.0.0.1:{}", redis.port.number());
    let index = index::Index::connect(&url, false).await.unwrap();
    index.groups().await.unwrap();
    let stranger = format!("redis://dispatcher.1:wrong@127.0.0.1:{}", redis.port.number());
    assert!(index::Index::connect(&stranger, false).await.is_err());
}
