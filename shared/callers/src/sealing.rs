//! Texts that only servers with the same key can read and make: sessions and attempts to sign in, which browsers keep.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, Prk, Salt},
    hmac,
    rand::{SecureRandom as _, SystemRandom},
};
use serde::{Serialize, de::DeserializeOwned};

/// The secret of a key file, from which keys for different purposes are derived: none of them says anything of another.
pub(crate) struct KeyMaterial(Prk);

impl KeyMaterial {
    pub(crate) fn of(secret: &[u8]) -> Self {
        Self(Salt::new(HKDF_SHA256, b"forebay").extract(secret))
    }

    /// Seals texts for a purpose.
    pub(crate) fn sealer(&self, purpose: &'static str) -> Option<Sealer> {
        let info = [b"seal ".as_slice(), purpose.as_bytes()];
        let key = UnboundKey::from(self.0.expand(&info, &AES_256_GCM).ok()?);
        Some(Sealer { purpose, key: LessSafeKey::new(key) })
    }

    /// Signs texts for a purpose.
    pub(crate) fn signer(&self, purpose: &str) -> Option<hmac::Key> {
        let info = [b"sign ".as_slice(), purpose.as_bytes()];
        Some(hmac::Key::from(self.0.expand(&info, hmac::HMAC_SHA256).ok()?))
    }
}

/// Seals values for one purpose.
pub(crate) struct Sealer {
    purpose: &'static str,
    key: LessSafeKey,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sealer").field(&self.purpose).finish()
    }
}

impl Sealer {
    /// The sealed value, with characters that cookies may have.
    pub(crate) fn seal(&self, value: &impl Serialize) -> Option<String> {
        let mut content = serde_json::to_vec(value).ok()?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let aad = Aad::from(self.purpose);
        self.key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut content).ok()?;
        Some(URL_SAFE_NO_PAD.encode([nonce.as_slice(), &content].concat()))
    }

    /// The value; none if this key did not seal it for this purpose.
    pub(crate) fn open<T: DeserializeOwned>(&self, sealed: &str) -> Option<T> {
        let mut sealed = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, content) = sealed.split_first_chunk_mut::<NONCE_LEN>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let content = self.key.open_in_place(nonce, Aad::from(self.purpose), content).ok()?;
        serde_json::from_slice(content).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_key_opens_for_the_same_purpose() {
        let material = KeyMaterial::of(&[1; 32]);
        let sealer = material.sealer("session").unwrap();
        let cookie = sealer.seal(&"ada").unwrap();
        assert_eq!(sealer.open::<String>(&cookie).as_deref(), Some("ada"));
        assert_eq!(material.sealer("session").unwrap().open::<String>(&cookie).as_deref(), Some("ada"));
        assert_ne!(sealer.seal(&"ada").unwrap(), cookie);
        for other in [material.sealer("login"), KeyMaterial::of(&[2; 32]).sealer("session")] {
            assert_eq!(other.unwrap().open::<String>(&cookie), None);
        }
        for at in 0..cookie.len() {
            let flipped = if cookie.as_bytes()[at] == b'A' { "B" } else { "A" };
            let mut changed = cookie.clone();
            changed.replace_range(at..=at, flipped);
            assert_eq!(sealer.open::<String>(&changed), None, "character {at}");
        }
        for text in ["", "AAAA", "%", &cookie[1..], &format!("{cookie}AAAA")] {
            assert_eq!(sealer.open::<String>(text), None, "{text}");
        }
    }
}
