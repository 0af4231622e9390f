//! The challenge of a registry that wants credentials (RFC 9110, section 11.6.1).

use download::HeaderValue;

/// How a request is authorised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// By name and password.
    Basic,
    /// By a token of another server.
    Bearer {
        /// The URL of the server that gives tokens.
        realm: String,
        service: Option<String>,
    },
}

impl Challenge {
    /// The first challenge that is understood; a token is preferred.
    pub(crate) fn find<'a>(headers: impl IntoIterator<Item = &'a HeaderValue>) -> Option<Self> {
        let texts = headers.into_iter().filter_map(|value| value.to_str().ok());
        let mut basic = None;
        for text in texts {
            match parse(text) {
                Some(bearer @ Self::Bearer { .. }) => return Some(bearer),
                Some(Self::Basic) => basic = Some(Self::Basic),
                None => {}
            }
        }
        basic
    }
}

fn parse(text: &str) -> Option<Challenge> {
    let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service) = (None, None);
    let mut rest = rest;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([',', ' ']);
        let (value, next) = match after.strip_prefix('"') {
            // Quotes are not escaped in URLs and names of services.
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        if name.eq_ignore_ascii_case("realm") {
            realm = Some(value.to_owned());
        } else if name.eq_ignore_ascii_case("service") {
            service = Some(value.to_owned());
        }
        rest = next;
    }
    Some(Challenge::Bearer { realm: realm?, service })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_of_real_registries_are_understood() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer { realm: realm.to_owned(), service: service.map(str::to_owned) })
        };
        for (text, wanted) in [
            (
                r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#,
                bearer("https://auth.docker.io/token", Some("registry.docker.io")),
            ),
            (
                r#"bearer realm="https://ghcr.io/token", service=ghcr.io"#,
                bearer("https://ghcr.io/token", Some("ghcr.io")),
            ),
            (r#"Basic realm="Registry""#, Some(Challenge::Basic)),
            ("Basic", Some(Challenge::Basic)),
            (r#"Bearer service="x""#, None),
            (r#"Bearer realm="unclosed"#, None),
            ("Negotiate", None),
            ("", None),
        ] {
            let header: HeaderValue = text.parse().unwrap();
            assert_eq!(Challenge::find([&header]), wanted, "{text}");
        }
        let both = [r#"Basic realm="x""#, r#"Bearer realm="https://t""#].map(|text| text.parse().unwrap());
        assert_eq!(Challenge::find(&both), bearer("https://t", None));
    }
}
