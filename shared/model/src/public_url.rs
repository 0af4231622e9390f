//! The address at which browsers reach the pages of a farm.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use url::Url;

/// `https://forebay.example.com`, with a port if it is not the usual one, and without a path: the origin of all pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl(Url);

/// The text is not such an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected the address of the pages without a path, such as https://forebay.example.com, not {0:?}")]
pub struct ParsePublicUrlError(String);

impl PublicUrl {
    /// Whether browsers reach the pages over TLS.
    pub fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// The value of the header `Host` of a browser.
    pub fn authority(&self) -> &str {
        self.0.authority()
    }
}

impl FromStr for PublicUrl {
    type Err = ParsePublicUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ParsePublicUrlError(text.chars().take(200).collect());
        let url = Url::parse(text).map_err(|_| invalid())?;
        // The parser also accepts white space, backslashes, and other numbers of slashes: these are slips.
        let has_two_slashes = text.split_once("://").is_some_and(|(_, rest)| !rest.starts_with('/'));
        let is_plain = has_two_slashes && text.bytes().all(|at| at.is_ascii_graphic() && at != b'\\');
        let is_origin = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        let has_user = !url.username().is_empty() || url.password().is_some();
        let is_web = matches!(url.scheme(), "http" | "https");
        if is_web && is_plain && is_origin && !has_user { Ok(Self(url)) } else { Err(invalid()) }
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.origin().ascii_serialization())
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
        for text in [
            "",
            "forebay",
            "ftp://a",
            "https://",
            "https://:1",
            "https://a/b",
            "https://a?b",
            "https://u@a",
            " https://a",
        ] {
            assert!(text.parse::<PublicUrl>().is_err(), "{text}");
        }
    }
}
