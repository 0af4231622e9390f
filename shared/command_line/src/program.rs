//! Finds the other program of an installation.

use std::{env, os::unix::fs::PermissionsExt as _, path::PathBuf};

/// Path of the program with this name: in the folder of the running program, else in `PATH`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let own = env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
    let path = env::var_os("PATH").unwrap_or_default();
    let places = own.into_iter().chain(env::split_paths(&path));
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    places.map(|place| place.join(name)).find(is_program)
}
