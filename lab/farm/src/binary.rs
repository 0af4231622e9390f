//! Paths of programs that tests run.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

/// Path of the `forebay` beside the test executable. Cargo does not build it for a test of another crate.
pub fn forebay_binary() -> PathBuf {
    let test = env::current_exe().expect("the test executable has a path");
    let found =
        test.ancestors().skip(1).take(2).map(|folder| folder.join("forebay")).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("no forebay beside {}: run `cargo build --workspace` first", test.display())
    })
}

/// Root of the repository.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("lab/farm is two folders deep").to_owned()
}

/// Path of a program in `.tools/bin`, or its name, to be found in `PATH`.
pub fn tool(name: &str) -> PathBuf {
    let ours = repository().join(".tools/bin").join(name);
    if ours.exists() { ours } else { name.into() }
}

/// Value of `PATH` with `.tools/bin` in front.
pub fn with_tools() -> OsString {
    let mut folders = vec![repository().join(".tools/bin")];
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    env::join_paths(folders).expect("PATH was split from one")
}
