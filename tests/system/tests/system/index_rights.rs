//! Every key of the index and every command of Redis, tried as each user of the farm.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use access::{Access, Role};
use credentials::Seed;
use farm::{Guard, Port, Process, SOON, tool};
use tidy::SourceFile;

use crate::{
    access::Folder,
    decided::{Allowed, compare},
};

/// A user of the test who may do everything.
const ADMIN: &str = "admin";
/// Keys outside of the index whose names resemble its keys.
const OTHER_KEYS: [&str; 6] =
    ["x", "forebay", "forebay:x", "forebay:{index}", "forebay:{actions2}:meta", "x:forebay:{index}:meta"];
/// Reads the key in its first argument instead of its declared key.
const SCRIPT: &str = "return redis.call('EXISTS', ARGV[1])";

/// An answer of Redis.
#[derive(Debug, Clone)]
enum Answer {
    Text(String),
    Error(String),
    List(Vec<Answer>),
}

impl Answer {
    fn is_permitted(&self) -> bool {
        !matches!(self, Self::Error(text) if text.starts_with("NOPERM") || text.contains("can't access at least one"))
    }

    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Error(text) => text,
            Self::List(all) => panic!("not a text: {all:?}"),
        }
    }

    fn list(&self) -> &[Self] {
        match self {
            Self::List(all) => all,
            Self::Text(text) | Self::Error(text) => panic!("not a list: {text}"),
        }
    }
}

/// A connection to Redis without a library, which would refuse or add commands.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn open(port: u16, user: &str, password: &str) -> Result<Self, String> {
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut connection = Self(BufReader::new(stream));
        match connection.ask(&["AUTH", user, password]) {
            Answer::Text(_) => Ok(connection),
            refused @ (Answer::Error(_) | Answer::List(_)) => Err(format!("{refused:?}")),
        }
    }

    fn ask(&mut self, words: &[&str]) -> Answer {
        let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        let words: Vec<String> = words.collect();
        let request = format!("*{}\r\n{}", words.len(), words.concat());
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        self.answer()
    }

    fn answer(&mut self) -> Answer {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "Redis closed the connection");
        let (kind, rest) = line.trim_end().split_at(1);
        match (kind, rest.parse::<usize>()) {
            ("-", _) => Answer::Error(rest.to_owned()),
            ("$", Ok(length)) => {
                let mut text = vec![0; length + 2];
                self.0.read_exact(&mut text).unwrap();
                Answer::Text(String::from_utf8_lossy(&text[..length]).into_owned())
            }
            ("*" | "~", Ok(count)) => Answer::List((0..count).map(|_| self.answer()).collect()),
            ("%", Ok(count)) => Answer::List((0..2 * count).map(|_| self.answer()).collect()),
            _ => Answer::Text(rest.to_owned()),
        }
    }
}

/// A Redis with the generated users of a farm.
struct Locked {
    port: Port,
    /// Users by the name of their role, with their passwords.
    users: BTreeMap<&'static str, (String, String)>,
    /// Roles without a user of Redis.
    others: BTreeMap<&'static str, (String, String)>,
    _server: (Process, Guard, Folder),
}

impl Locked {
    async fn start() -> Self {
        let folder = Folder::new();
        folder.json("init --seeds seeds").await;
        folder.json("apply --seeds seeds --nats-config users.conf --redis-acl users.acl").await;
        let file = folder.path().join("users.acl");
        let users = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{users}user {ADMIN} on >{ADMIN} ~* &* +@all\n")).unwrap();
        let (guard, port) = (Guard::start(folder.path()), Port::reserve());
        let mut command = tokio::process::Command::new(tool("redis-server"));
        command.args(["--port", &port.number().to_string(), "--bind", "127.0.0.1", "--save", ""]);
        // Without this, Redis refuses these commands before it checks rights.
        command.args(["--enable-debug-command", "yes", "--enable-module-command", "yes"]);
        command.arg("--aclfile").arg(&file).arg("--dir").arg(folder.path());
        let process = Process::start("redis", command, &folder.path().join("redis.log"), &guard);
        let deadline = Instant::now() + SOON;
        while Connection::open(port.number(), ADMIN, ADMIN).is_err() {
            assert!(Instant::now() < deadline, "redis-server does not answer");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let access = fs::read_to_string(folder.path().join("access.toml")).unwrap();
        let access = Access::parse(&access).unwrap();
        let (mut users, mut others) = (BTreeMap::new(), BTreeMap::new());
        for name in access.services().keys() {
            let user = name.bus_user().to_string();
            let seed = Seed::read(&folder.path().join(format!("seeds/{user}.seed"))).unwrap().unwrap();
            let all = if name.uses_redis() { &mut users } else { &mut others };
            all.insert(name.role().as_str(), (user, seed.redis_password()));
        }
        assert_eq!(users.len() + others.len(), Role::ALL.len());
        Self { port, users, others, _server: (process, guard, folder) }
    }

    fn admin(&self) -> Connection {
        Connection::open(self.port.number(), ADMIN, ADMIN).unwrap()
    }

    fn connect(&self, role: &str) -> Connection {
        let (user, password) = &self.users[role];
        Connection::open(self.port.number(), user, password).unwrap_or_else(|error| panic!("{role}: {error}"))
    }

    /// The roles for which `is` holds; `all` for all that have a user.
    fn who(&self, is: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let roles: BTreeSet<String> =
            self.users.keys().filter(|role| is(role)).map(|role| (*role).to_owned()).collect();
        if roles.len() == self.users.len() { ["all".to_owned()].into() } else { roles }
    }
}

/// Commands, or the subcommands of those that have some, and the number of words that each takes at least.
fn commands(admin: &mut Connection) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    let mut open = admin.ask(&["COMMAND"]).list().to_vec();
    while let Some(command) = open.pop() {
        let fields = command.list();
        let (words, subcommands): (i64, _) = (fields[1].text().parse().unwrap(), fields[9].list());
        open.extend(subcommands.iter().cloned());
        if subcommands.is_empty() {
            all.insert(fields[0].text().to_owned(), usize::try_from(words.abs()).unwrap());
        }
    }
    all
}

#[tokio::test]
async fn each_command_of_redis_is_open_to_whom_a_person_decided() {
    let locked = Locked::start().await;
    let commands = commands(&mut locked.admin());
    assert!(commands.len() > 300, "{}", commands.len());
    let key = keys().into_iter().next().unwrap();
    let mut found = Allowed::new();
    for (command, least) in &commands {
        let mut words: Vec<&str> = command.split('|').collect();
        // Redis refuses an incomplete command before it checks rights.
        words.resize(words.len().max(*least), &key);
        let who = locked.who(|role| locked.connect(role).ask(&words).is_permitted());
        if !who.is_empty() {
            found.insert(command.clone(), who);
        }
    }
    compare("commands.txt", include_str!("decided/commands.txt"), &found);
    assert!(matches!(locked.admin().ask(&["PING"]), Answer::Text(_)));
}

/// The keys that scripts and sources of both indexes name.
fn keys() -> BTreeSet<String> {
    let of_index = |path: &str| path.starts_with("shared/index/") && !path.contains("/tests/");
    let files = ["lua", "rs"].into_iter().flat_map(tidy::files).filter(|file| of_index(&file.path));
    let (of_actions, of_builds): (Vec<_>, Vec<_>) = files.partition(|file| file.path.contains("action"));
    let keys: BTreeSet<String> = [of_actions, of_builds].iter().flat_map(|files| keys_in(files)).collect();
    assert!(keys.len() > 50, "{keys:?}");
    keys
}

/// The keys in the files of one index: where it begins all names, and the names.
fn keys_in(files: &[SourceFile]) -> BTreeSet<String> {
    let texts: Vec<&str> = files.iter().map(|file| file.text.split("#[cfg(test)]").next().unwrap()).collect();
    let is_meta = |it: &&str| it.starts_with("forebay:{") && it.ends_with(":meta");
    let metas: BTreeSet<&str> = texts.iter().flat_map(|text| text.split('"').filter(is_meta)).collect();
    assert_eq!(metas.len(), 1, "{metas:?}");
    let meta = metas.first().unwrap();
    let names_in = |text: &&str| -> Vec<String> {
        let starts = ["P .. '", "key(\"", "key(&format!(\""].into_iter();
        let rests = starts.flat_map(|start| text.split(start).skip(1));
        rests.map(|rest| rest.split(['\'', '"', '{']).next().unwrap().to_owned()).collect()
    };
    let example = |name: String| if name.ends_with(':') { format!("{name}x") } else { name };
    let all = texts.iter().flat_map(names_in).map(example).chain(["meta".to_owned()]);
    all.map(|name| format!("{}{name}", meta.trim_end_matches("meta"))).collect()
}

#[tokio::test]
async fn each_key_of_redis_is_open_to_whom_a_person_decided() {
    let locked = Locked::start().await;
    let mut admin = locked.admin();
    let sha = admin.ask(&["SCRIPT", "LOAD", SCRIPT]).text().to_owned();
    let own = keys();
    let mut found = Allowed::new();
    for key in own.iter().map(String::as_str).chain(OTHER_KEYS) {
        let tries: [(&str, &[&str]); 4] = [
            ("read", &["EXISTS", key]),
            ("write", &["UNLINK", key]),
            ("script", &["EVALSHA", &sha, "1", key, key]),
            // A script that names a key of the index and reads another one.
            ("within", &["EVALSHA", &sha, "1", "forebay:{index}:meta", key]),
        ];
        let row = found.entry(key.to_owned()).or_default();
        for (what, words) in tries {
            let who = locked.who(|role| locked.connect(role).ask(words).is_permitted());
            row.extend(who.into_iter().map(|who| format!("{who}:{what}")));
        }
    }
    compare("keys.txt", include_str!("decided/keys.txt"), &found);
}

#[tokio::test]
async fn services_that_do_not_use_the_index_are_not_admitted_by_redis() {
    let locked = Locked::start().await;
    assert!(!locked.others.is_empty());
    for (role, (user, password)) in &locked.others {
        let answer = Connection::open(locked.port.number(), user, password);
        assert!(answer.is_err_and(|it| it.contains("WRONGPASS")), "{role}");
    }
    let stream = TcpStream::connect(("127.0.0.1", locked.port.number())).unwrap();
    let answer = Connection(BufReader::new(stream)).ask(&["GET", "forebay:{index}:meta"]);
    assert!(answer.text().starts_with("NOAUTH"), "{answer:?}");
}
