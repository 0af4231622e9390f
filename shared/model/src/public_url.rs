//! The address at which browsers reach the pages of a farm.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// `https://forebay.example.com`, with a port if it is not the usual one, and without a path: the origin of all pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl {
    is_https: bool,
    /// Name or address, with the port if it is not the usual one, in lower case.
    authority: String,
}

/// The text is not such an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected the address of the pages without a path, such as https://forebay.example.com, not {0:?}")]
pub struct ParsePublicUrlError(String);

impl PublicUrl {
    /// Whether browsers reach the pages over TLS.
    pub fn is_https(&self) -> bool {
        self.is_https
    }

    /// The value of the header `Host` of a browser.
    pub fn authority(&self) -> &str {
        &self.authority
    }
}

impl FromStr for PublicUrl {
    type Err = ParsePublicUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ParsePublicUrlError(text.chars().take(200).collect());
        let (scheme, rest) = text.split_once("://").ok_or_else(invalid)?;
        let (is_https, usual_port) = match scheme {
            "https" => (true, ":443"),
            "http" => (false, ":80"),
            _ => return Err(invalid()),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest).to_ascii_lowercase();
        let authority = authority.strip_suffix(usual_port).unwrap_or(&authority);
        let is_plain = |at: char| at.is_ascii_alphanumeric() || matches!(at, '.' | '-' | ':' | '[' | ']');
        if authority.is_empty() || authority.starts_with(':') || !authority.chars().all(is_plain) {
            return Err(invalid());
        }
        Ok(Self { is_https, authority: authority.to_owned() })
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

impl Serialize for PublicUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_as_browsers_write_origins() {
        for (text, origin) in [
            ("https://Forebay.example.com/", "https://forebay.example.com"),
            ("https://forebay:443", "https://forebay"),
            ("http://[::1]:8080", "http://[::1]:8080"),
        ] {
            assert_eq!(text.parse::<PublicUrl>().unwrap().to_string(), origin);
        }
        for text in
            ["", "forebay", "ftp://a", "https://", "https://:1", "https://a/b", "https://a?b", "https://u@a"]
        {
            assert!(text.parse::<PublicUrl>().is_err(), "{text}");
        }
    }
}
