//! The URL of a repository, read as git reads it. What git could read otherwise is refused.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;

/// Where a repository is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// At a path of this machine.
    Local(PathBuf),
    /// On a host, which git reaches over HTTP.
    Http(Endpoint),
    /// On a host, which git reaches over SSH.
    Ssh(Endpoint),
}

/// A host and its port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// In lower case, without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
}

const FORMS: &str = "expected an https, http, ssh or file URL, USER@HOST:PATH, or an absolute path";
const SSH: u16 = 22;

impl Address {
    /// Reads a URL, or says what is wrong with it.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        if url.chars().any(|it| it.is_control() || it.is_whitespace() && it != ' ') {
            return Err("it contains a control character".to_owned());
        }
        if let Some((scheme, rest)) = url.split_once("://") {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
            return match scheme {
                "https" => Ok(Self::Http(endpoint(authority, 443)?)),
                "http" => Ok(Self::Http(endpoint(authority, 80)?)),
                "ssh" => Ok(Self::Ssh(endpoint(authority, SSH)?)),
                "file" => file(rest),
                _ => Err(format!("its scheme is {scheme}; {FORMS}")),
            };
        }
        if url.starts_with('/') {
            return Ok(Self::Local(url.into()));
        }
        let host = url.split_once(':').filter(|(host, _)| !host.contains('/'));
        match host {
            Some((host, path)) if !path.starts_with(':') => Ok(Self::Ssh(Endpoint {
                host: host_of(host.rsplit_once('@').map_or(host, |(_, host)| host))?,
                port: SSH,
            })),
            Some(_) | None => Err(FORMS.to_owned()),
        }
    }
}

fn file(rest: &str) -> Result<Address, String> {
    let path = percent_decode_str(rest).decode_utf8().map_err(|error| error.to_string())?;
    if path.starts_with('/') && !path.contains('\0') {
        Ok(Address::Local(PathBuf::from(path.into_owned())))
    } else {
        Err("a file URL must be file:// and an absolute path".to_owned())
    }
}

fn endpoint(authority: &str, usual: u16) -> Result<Endpoint, String> {
    let (user, place) = authority.rsplit_once('@').unwrap_or(("", authority));
    if user.contains(['@', '\\', ' ', '[', ']']) {
        return Err(
            "its user name contains one of @ \\ [ ] and blank; write %40, %5C, %5B, %5D or %20".to_owned()
        );
    }
    let (host, port) = match place.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(None) => return Err("its host has no closing bracket".to_owned()),
        Some(Some((host, port))) => {
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err("its host in brackets is not an IPv6 address".to_owned());
            }
            let port = if port.is_empty() { Some("") } else { port.strip_prefix(':') };
            (host.to_ascii_lowercase(), port.ok_or_else(|| "its port is not a number".to_owned())?)
        }
        None => {
            let (host, port) = place.split_once(':').unwrap_or((place, ""));
            (host_of(host)?, port)
        }
    };
    let port = if port.is_empty() { Ok(usual) } else { port.parse() };
    Ok(Endpoint { host, port: port.map_err(|_| "its port is not a number".to_owned())? })
}

/// Checks a host name strictly, so that git, curl, ssh and this worker cannot mean different hosts by it.
fn host_of(text: &str) -> Result<String, String> {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || text.starts_with('-') || text.ends_with('.') || !text.bytes().all(is_known) {
        return Err(format!(
            "its host is {text:?}; expected letters, digits, `-`, `_` and `.`, not at its end"
        ));
    }
    Ok(text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Endpoint {
        Endpoint { host: host.to_owned(), port }
    }

    #[test]
    fn a_url_names_a_host_or_a_path() {
        for (url, wanted) in [
            ("https://Example.com/r.git", Address::Http(at("example.com", 443))),
            ("http://u:p%40@example.com:8080/r", Address::Http(at("example.com", 8080))),
            ("http://[::1]/r", Address::Http(at("::1", 80))),
            ("http://a?@b/", Address::Http(at("a", 80))),
            ("ssh://git@h:29418/r", Address::Ssh(at("h", 29418))),
            ("git@h.example:group/r.git", Address::Ssh(at("h.example", 22))),
            ("h:/abs", Address::Ssh(at("h", 22))),
            ("/srv/a:b", Address::Local("/srv/a:b".into())),
            ("file:///srv/a%2Fb", Address::Local("/srv/a/b".into())),
        ] {
            assert_eq!(Address::parse(url), Ok(wanted), "{url}");
        }
    }

    #[test]
    fn c1_what_git_could_read_otherwise_is_refused() {
        for url in [
            "ext::sh -c id",
            "fd::7",
            "a::b",
            "git://h/r",
            "HTTP://h/r",
            "ssh://-oProxyCommand=id/r",
            "git@-oProxyCommand=id:r",
            "file://localhost/srv",
            "file://srv",
            "file:///a%00",
            "relative/path",
            "./r",
            "http://a@b@127.0.0.1/",
            "http://a\\@b/",
            "http://a b/",
            "http://h./r",
            "http://h:x/r",
            "http://[127.0.0.1]/r",
            "http://[::1/r",
            "http:///r",
            "[::1]:r",
            "h\n:r",
            "",
        ] {
            assert!(Address::parse(url).is_err(), "{url}");
        }
    }
}
