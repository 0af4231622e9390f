//! Clock skew as text.

use model::Skew;

/// Adds the clock skew of the machine to `status` if it is notable.
pub(crate) fn with_skew(status: String, skew: Option<Skew>) -> String {
    match skew.filter(|skew| skew.is_notable()) {
        Some(skew) => format!("{status}, clock {skew}"),
        None => status,
    }
}
