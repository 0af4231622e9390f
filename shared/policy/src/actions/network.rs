//! The network of an action, as a platform property.
//!
//! Sandboxed actions reach no network unless they ask for it, and their executor offers it. Names and values are compared
//! without regard to case:
//!
//! | property | asks for it | asks for none |
//! |---|---|---|
//! | `network` | `on`, `external` | `off` |
//! | `dockerNetwork` | `standard`, `bridge`, `host` | `off`, `none` |
//!
//! The names and values are those of other farms. All that ask for it are the same requirement, [`OFFER`].

/// The property and value by which executors offer the network of their machine.
pub const OFFER: (&str, &str) = ("network", "on");

/// The name that other farms use, which some clients set.
const OTHER_NAME: &str = "dockerNetwork";

/// Whether a property asks for the network, or for none; `None` if it is another property, or has another value.
fn asks(name: &str, value: &str) -> Option<bool> {
    let is_one_of = |all: &[&str]| all.iter().any(|it| it.eq_ignore_ascii_case(value));
    let (on, off): (&[&str], &[&str]) = if name.eq_ignore_ascii_case(OFFER.0) {
        (&[OFFER.1, "external"], &["off"])
    } else if name.eq_ignore_ascii_case(OTHER_NAME) {
        (&["standard", "bridge", "host"], &["off", "none"])
    } else {
        return None;
    };
    if is_one_of(on) { Some(true) } else { is_one_of(off).then_some(false) }
}

/// Whether an action with these properties asks for the network.
pub fn is_asked(platform: &[(String, String)]) -> bool {
    platform.iter().any(|(name, value)| asks(name, value) == Some(true))
}

/// What an executor must offer for a property of an action; `None` if anything is good enough: without a network, executors
/// need not offer anything.
pub(super) fn requirement(name: &str, value: &str) -> Option<(String, String)> {
    match asks(name, value) {
        Some(true) => Some((OFFER.0.to_owned(), OFFER.1.to_owned())),
        Some(false) => None,
        None => Some((name.to_owned(), value.to_owned())),
    }
}

/// What an operator can do if no pool offers this property.
pub(super) fn advice(property: &str) -> &'static str {
    if property == OFFER.0 {
        "; an executor offers network = \"on\" with the setting action_network"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_are_one_requirement_or_none() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let on = Some(pair("network", "on"));
        for (name, value, wanted) in [
            ("network", "on", on.clone()),
            ("Network", "External", on.clone()),
            ("dockerNetwork", "standard", on.clone()),
            ("dockernetwork", "bridge", on),
            ("network", "off", None),
            ("dockerNetwork", "none", None),
            ("network", "10g", Some(pair("network", "10g"))),
            ("Arch", "on", Some(pair("Arch", "on"))),
        ] {
            let asked = wanted.as_ref() == Some(&pair("network", "on"));
            assert_eq!(is_asked(&[pair("x", "y"), pair(name, value)]), asked, "{name} = {value}");
            assert_eq!(requirement(name, value), wanted, "{name} = {value}");
        }
    }
}
