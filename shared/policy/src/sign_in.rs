//! Where a person goes after signing in, and how long a session lasts.

use std::time::Duration;

/// Maximum bytes of a path that is remembered.
const PATH_MAX: usize = 1000;

/// The page that a person wanted before signing in; the first page, if that is not a page of this server.
///
/// A browser takes `//host`, `/\host` and both with a tab or a line break in them as an address of another server.
pub fn wanted_page(asked: &str) -> &str {
    let rest = asked.strip_prefix('/').filter(|_| asked.len() <= PATH_MAX);
    let is_local = rest.is_some_and(|rest| {
        let is_plain = |at: u8| at.is_ascii_graphic() && at != b'\\';
        !rest.starts_with('/') && rest.bytes().all(is_plain)
    });
    let path = asked.split(['?', '#']).next().unwrap_or_default();
    let is_of_session = path == "/logout" || path == "/login" || path.starts_with("/login/");
    if is_local && !is_of_session { asked } else { "/" }
}

/// How long a session still lasts; none if it has ended. All times are since 1970, by the clocks of servers.
pub fn session_left(issued: Duration, lifetime: Duration, now: Duration) -> Option<Duration> {
    let left = lifetime.checked_sub(now.saturating_sub(issued))?;
    (!left.is_zero()).then_some(left)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_pages_of_this_server_are_wanted() {
        for path in
            ["/", "/builds", "/builds?group=web&text=%2F%2Fevil", "/builds/web/1?line=1#L1", "/loginless"]
        {
            assert_eq!(wanted_page(path), path);
        }
        for path in [
            "",
            "//evil.example.com",
            "/\\evil.example.com",
            "\\/evil.example.com",
            "/\t/evil.example.com",
            "\t//evil.example.com",
            "/builds\r\nset-cookie: a=b",
            "https://evil.example.com",
            "https:/evil.example.com",
            "javascript:alert(1)",
            "evil.example.com",
            "/builds\u{2028}",
            "/login?to=/builds",
            "/login/dex",
            "/logout",
        ] {
            assert_eq!(wanted_page(path), "/", "{path:?}");
        }
        let long = format!("/{}", "a".repeat(PATH_MAX));
        assert_eq!(wanted_page(&long), "/");
    }

    #[test]
    fn a_session_ends_after_its_lifetime() {
        let seconds = Duration::from_secs;
        assert_eq!(session_left(seconds(100), seconds(10), seconds(104)), Some(seconds(6)));
        assert_eq!(session_left(seconds(100), seconds(10), seconds(110)), None);
        assert_eq!(session_left(seconds(100), seconds(10), seconds(1000)), None);
        // Clocks of two servers may differ.
        assert_eq!(session_left(seconds(100), seconds(10), seconds(99)), Some(seconds(10)));
    }

    proptest! {
        #[test]
        fn a_wanted_page_is_one_header_and_of_this_server(asked in ".{0,40}") {
            let wanted = wanted_page(&asked);
            prop_assert!(wanted.starts_with('/') && !wanted.starts_with("//") && !wanted.contains(['\\', '\n', '\r', '\t']));
        }
    }
}
