//! How wrong clocks are shown.

use model::Skew;

/// `status`, with how wrong the clock of that machine is where that is notable.
pub(crate) fn with_skew(status: String, skew: Option<Skew>) -> String {
    match skew.filter(|skew| skew.is_notable()) {
        Some(skew) => format!("{status}, clock {skew}"),
        None => status,
    }
}
