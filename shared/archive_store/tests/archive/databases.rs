//! A SQLite file, and a PostgreSQL server of the test's own.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use archive_store::{Dialect, Store};
use tempfile::TempDir;

/// An empty archive; its database ends with it.
pub(crate) struct Database {
    pub(crate) store: Store,
    /// Where a second process would find it.
    pub(crate) url: String,
    folder: TempDir,
    server: Option<Child>,
}

impl Database {
    pub(crate) fn sqlite() -> Self {
        let folder = TempDir::new().unwrap();
        let store = Store::new("archive/archive.db", folder.path()).unwrap();
        Self { store, url: "archive/archive.db".to_owned(), folder, server: None }
    }

    /// A server on a socket in a folder; none, with a message, if PostgreSQL is not installed.
    pub(crate) fn postgres() -> Option<Self> {
        let Some(programs) = postgres_programs() else {
            eprintln!("skipped: PostgreSQL is not installed (make tools installs it)");
            return None;
        };
        let folder = TempDir::new().unwrap();
        let (data, socket) = (folder.path().join("data"), folder.path().to_owned());
        let root = nix::unistd::geteuid().is_root();
        if root {
            assert!(Command::new("chown").arg("postgres").arg(&socket).status().unwrap().success());
        }
        let program = |name: &str| as_postgres(&programs.join(name), root);
        let made = program("initdb")
            .args(["-A", "trust", "-U", "postgres", "--locale=C.UTF-8", "-D"])
            .arg(&data)
            .output();
        let made = made.unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut server = program("postgres");
        server.arg("-D").arg(&data).arg("-k").arg(&socket);
        server.args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "full_page_writes=off"]);
        let mut server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        for _ in 0..600 {
            let answers = program("pg_isready").arg("-q").arg("-h").arg(&socket).status().unwrap();
            if answers.success() {
                let url = format!("postgres://postgres@localhost/postgres?host={}", socket.display());
                let store = Store::new(&url, Path::new("/")).unwrap();
                return Some(Self { store, url, folder, server: Some(server) });
            }
            assert_eq!(server.try_wait().unwrap(), None, "PostgreSQL ended at its start");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("PostgreSQL does not answer")
    }

    /// Runs a statement past the archive.
    pub(crate) async fn execute(&self, sql: &'static str) {
        use sqlx::Connection as _;
        match self.store.dialect() {
            Dialect::Sqlite => {
                let url = format!("sqlite://{}", self.path().display());
                let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
                sqlx::query(sql).execute(&mut connection).await.unwrap();
            }
            Dialect::Postgres => {
                let mut connection = sqlx::PgConnection::connect(&self.url).await.unwrap();
                sqlx::query(sql).execute(&mut connection).await.unwrap();
            }
        }
    }

    /// The file of an archive in SQLite.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join(&self.url)
    }

    /// The same database, as another process sees it.
    pub(crate) fn again(&self) -> Store {
        Store::new(&self.url, self.folder.path()).unwrap()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            // The child is runuser, which passes the signal on: an immediate stop of the server.
            let _ = Command::new("kill").args(["-QUIT", &server.id().to_string()]).status();
            let _ = server.wait();
        }
    }
}

fn postgres_programs() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .collect();
    found.sort();
    found.into_iter().rfind(|folder| folder.join("initdb").exists())
}

/// The server refuses to run as root.
fn as_postgres(program: &Path, root: bool) -> Command {
    if !root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program).current_dir("/");
    command
}
