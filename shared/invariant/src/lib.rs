//! States that the program rules out: a panic in debug builds and tests, a counted report and a fallback in production.
//!
//! Use it only where the code around it guarantees the state, never for input, files or answers of other processes.

use std::{
    fmt::{Arguments, Display},
    panic::Location,
    sync::OnceLock,
};

/// Handles a breach in builds without debug assertions.
pub type Reporter = fn(&'static Location<'static>, Arguments<'_>);

static REPORTER: OnceLock<Reporter> = OnceLock::new();

/// Sets the reporter of this process. Later calls have no effect.
pub fn report_with(reporter: Reporter) {
    let _first_stays = REPORTER.set(reporter);
}

/// Reports that a state exists that the program rules out.
///
/// # Panics
/// Always, in builds with debug assertions.
#[track_caller]
#[expect(
    clippy::panic,
    clippy::manual_assert,
    reason = "debug builds panic; an assertion of a constant is a lint too"
)]
pub fn breach(what: Arguments<'_>) {
    if cfg!(debug_assertions) {
        panic!("impossible: {what}");
    }
    if let Some(report) = REPORTER.get() {
        report(Location::caller(), what);
    }
}

/// Reports an impossible state, with the arguments of `format!`. In production the program continues after it.
#[macro_export]
macro_rules! impossible {
    ($($what:tt)+) => {
        $crate::breach(::core::format_args!($($what)+))
    };
}

/// A value that is always present.
pub trait Present<T> {
    /// The value. If it is absent, reports this and returns `fallback`.
    #[track_caller]
    fn present_or(self, fallback: T, what: &str) -> T;

    /// The value. If it is absent, reports this and returns the default.
    #[track_caller]
    fn present(self, what: &str) -> T
    where
        T: Default;
}

impl<T> Present<T> for Option<T> {
    fn present_or(self, fallback: T, what: &str) -> T {
        if let Some(value) = self {
            return value;
        }
        impossible!("{what}");
        fallback
    }

    fn present(self, what: &str) -> T
    where
        T: Default,
    {
        if let Some(value) = self {
            return value;
        }
        impossible!("{what}");
        T::default()
    }
}

impl<T, E: Display> Present<T> for Result<T, E> {
    fn present_or(self, fallback: T, what: &str) -> T {
        match self {
            Ok(value) => value,
            Err(error) => {
                impossible!("{what}: {error}");
                fallback
            }
        }
    }

    fn present(self, what: &str) -> T
    where
        T: Default,
    {
        match self {
            Ok(value) => value,
            Err(error) => {
                impossible!("{what}: {error}");
                T::default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_present_value_is_returned() {
        assert_eq!(Some(7).present_or(0, "a number"), 7);
        assert_eq!(Ok::<_, String>(7).present("a number"), 7);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "impossible: the number of nothing")]
    fn an_absent_value_panics_in_debug_builds() {
        None::<u8>.present("the number of nothing");
    }

    #[test]
    #[cfg(not(debug_assertions))]
    fn an_absent_value_is_reported_with_its_place() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static LINE: AtomicU32 = AtomicU32::new(0);
        report_with(|site, _| LINE.store(site.line(), Ordering::SeqCst));
        assert_eq!(Err::<u8, _>("broken").present_or(3, "a number"), 3);
        assert_eq!(LINE.load(Ordering::SeqCst), line!() - 1);
    }
}
