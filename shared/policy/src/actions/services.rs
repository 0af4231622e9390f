//! The services of an action, as a platform property.
//!
//! `forebay-services` has the services of the action as JSON: a list of [`ServiceRequest`]s, at most 64 KiB. It is part of the
//! action's digest like all properties: with other services it is another action.

use model::ServiceRequest;

use super::{image::IMAGE_OFFER, invalid_need::InvalidNeed};

/// The property that has the services of an action.
pub const SERVICES_PROPERTY: &str = "forebay-services";
/// The property and value by which executors offer to run actions with services.
pub const SERVICES_OFFER: (&str, &str) = ("services", "on");

/// Maximum bytes of the property's value.
const BYTES_MAX: usize = 64 << 10;

/// Whether a property has services.
fn has(name: &str) -> bool {
    name.eq_ignore_ascii_case(SERVICES_PROPERTY)
}

/// The services that an action with these properties asks for.
///
/// Fails if they cannot be read or cannot run together, or if there are two lists of them.
pub fn asked_services(platform: &[(String, String)]) -> Result<Vec<ServiceRequest>, InvalidNeed> {
    let mut all = platform.iter().filter(|(name, _)| has(name));
    let Some((name, value)) = all.next() else { return Ok(Vec::new()) };
    if let Some((name, value)) = all.next() {
        return Err(InvalidNeed::of(name, value, "expected one list of services, but there are two"));
    }
    parse(name, value)
}

fn parse(name: &str, value: &str) -> Result<Vec<ServiceRequest>, InvalidNeed> {
    if value.len() > BYTES_MAX {
        let why = format!("expected at most {BYTES_MAX} bytes, but it has {}", value.len());
        return Err(InvalidNeed::of(name, value, why));
    }
    let all: Vec<ServiceRequest> = serde_json::from_str(value)
        .map_err(|error| InvalidNeed::of(name, value, format!("expected services as JSON: {error}")))?;
    ServiceRequest::check_all(&all).map_err(|fault| InvalidNeed::of(name, value, fault.to_string()))?;
    Ok(all)
}

/// The value of the property for these services.
pub fn services_value(all: &[ServiceRequest]) -> String {
    // Strings, numbers and lists: there is nothing that JSON does not have.
    serde_json::to_string(all).unwrap_or_default()
}

/// The same properties with these services instead of their own.
pub fn with_services(platform: &[(String, String)], all: &[ServiceRequest]) -> Vec<(String, String)> {
    let replace = |(name, value): &(String, String)| {
        let value = if has(name) { services_value(all) } else { value.clone() };
        (name.clone(), value)
    };
    platform.iter().map(replace).collect()
}

/// What an executor must offer for a property of an action; `None` if it has no services.
pub(super) fn requirements(name: &str, value: &str) -> Option<Result<Vec<(String, String)>, InvalidNeed>> {
    has(name).then(|| {
        let all = parse(name, value)?;
        let image = all.iter().any(|service| service.image.is_some() || service.environment.is_some());
        let offers = [(!all.is_empty(), SERVICES_OFFER), (image, IMAGE_OFFER)];
        let required = offers.into_iter().filter(|(is_required, _)| *is_required);
        Ok(required.map(|(_, (name, value))| (name.to_owned(), value.to_owned())).collect())
    })
}

/// What an operator can do if no pool offers this property.
pub(super) fn advice(property: &str) -> &'static str {
    if property == SERVICES_OFFER.0 {
        "; an executor runs actions with services if it has the sandbox bubblewrap and input roots other than /"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(value: &str) -> Vec<(String, String)> {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        vec![pair("Arch", "x"), pair("Forebay-Services", value)]
    }

    const PLAIN: &str = r#"[{"name":"db","command":["x"]}]"#;
    const IN_IMAGE: &str = r#"[{"name":"db","image":"docker://a.b/c:1"}]"#;

    #[test]
    fn services_are_read_and_replaced_and_nothing_else_changes() {
        let asked = platform(IN_IMAGE);
        let mut all = asked_services(&asked).unwrap();
        let pinned = all[0].image.as_ref().unwrap().pinned(model::Digest::of(b"m"));
        all[0].image = Some(pinned);
        let changed = with_services(&asked, &all);
        assert_eq!(changed[0], asked[0]);
        assert_eq!(asked_services(&changed), Ok(all));
        assert_eq!(asked_services(&asked[..1]), Ok(Vec::new()));
    }

    #[test]
    fn an_executor_must_run_services_and_images_only_if_there_are_any() {
        let of = |value: &str| requirements(SERVICES_PROPERTY, value).unwrap().unwrap().len();
        assert_eq!([of("[]"), of(PLAIN), of(IN_IMAGE)], [0, 1, 2]);
        assert!(requirements("services", PLAIN).is_none());
    }

    #[test]
    fn what_is_no_list_of_services_is_refused() {
        let long = format!("[{}]", " ".repeat(BYTES_MAX));
        for (value, reason) in [
            ("db", "as JSON"),
            (r#"[{"name":"db"}]"#, "neither a command nor an image"),
            (long.as_str(), "at most 65536 bytes"),
        ] {
            let error = asked_services(&platform(value)).unwrap_err().to_string();
            assert!(error.contains(reason) && error.len() < 1000, "{error}");
        }
        let two = [platform(PLAIN), platform(PLAIN)].concat();
        assert!(asked_services(&two).unwrap_err().to_string().contains("two"));
    }
}
