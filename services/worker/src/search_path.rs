//! Where programs are looked for.

/// The search path of the worker.
pub(crate) fn search_path() -> String {
    std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned())
}
