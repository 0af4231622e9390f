//! Tokens of builds: a worker gives one to each build that it runs, with which the tools of the build run actions in its group.

use std::{
    fmt,
    path::Path,
    time::{Duration, SystemTime},
};

use credentials::{KeyFile, KeyFileError};
use model::{BuildKey, hex};
use ring::hmac;

/// First characters of every token of a build.
const PREFIX: &str = "fbb_";

/// The key that signs tokens of builds, which workers and gateways share.
#[derive(Clone)]
pub struct BuildTokens(hmac::Key);

impl fmt::Debug for BuildTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BuildTokens")
    }
}

impl BuildTokens {
    /// Reads the key of a file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or is too short to be secret.
    pub fn of_file(path: &Path) -> Result<Self, KeyFileError> {
        Ok(Self::of_key(&KeyFile::read(path)?.secret))
    }

    fn of_key(key: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// The token of a build, which is accepted until `expires`.
    pub fn issue(&self, build: &BuildKey, expires: SystemTime) -> String {
        let seconds = expires.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let signed = format!("{PREFIX}{seconds}/{build}");
        let tag = hmac::sign(&self.0, signed.as_bytes());
        format!("{signed}/{}", hex(tag.as_ref()))
    }

    /// The part of a token that proves that the farm made it. The rest is public.
    pub fn proof(token: &str) -> &str {
        token.rsplit_once('/').map_or(token, |(_, proof)| proof)
    }

    /// The build of a token, and when the token expires; none if this key did not sign it.
    pub(crate) fn verify(&self, token: &str) -> Option<(BuildKey, SystemTime)> {
        let (signed, tag) = token.rsplit_once('/')?;
        let tag: crate::key::KeyHash = tag.parse().ok()?;
        hmac::verify(&self.0, signed.as_bytes(), tag.bytes()).ok()?;
        let (seconds, build) = signed.strip_prefix(PREFIX)?.split_once('/')?;
        let (group, id) = build.split_once('/')?;
        let build = BuildKey { group: group.parse().ok()?, id: id.parse().ok()? };
        Some((build, SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.parse().ok()?))?))
    }
}

/// Whether a text looks like the token of a build.
pub(crate) fn is_build_token(text: &str) -> bool {
    text.starts_with(PREFIX)
}

#[cfg(test)]
mod tests {
    use model::BuildId;

    use super::*;

    #[test]
    fn only_the_signed_token_names_its_build() {
        let tokens = BuildTokens::of_key(&[7; 32]);
        let build = BuildKey { group: "web".parse().unwrap(), id: BuildId::generate() };
        let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
        let token = tokens.issue(&build, expires);
        assert_eq!(tokens.verify(&token), Some((build.clone(), expires)));
        assert_eq!(BuildTokens::of_key(&[8; 32]).verify(&token), None);
        for changed in [
            token.replace("/web/", "/ci/"),
            token.replace("1900000000", "1900000001"),
            format!("{token}0"),
            token.rsplit_once('/').unwrap().0.to_owned(),
            String::new(),
        ] {
            assert_eq!(tokens.verify(&changed), None, "{changed}");
        }
    }
}
