//! Secrets of builds: values that nothing prints, and masks that remove them from output. No I/O.

mod masker;
mod masks;
mod spellings;

use zeroize::Zeroizing;

pub use masker::Masker;
pub use masks::{Masks, NoMasks};

/// Maximum size of a secret, and of all secrets of a build together, in bytes.
pub const SECRET_BYTES_MAX: usize = 64 << 10;
/// Minimum size of a secret in bytes, without white space around it: a shorter one would be found in every output.
pub const SECRET_BYTES_MIN: usize = 4;

/// The value of a secret. It cannot be printed, copied or stored by mistake, because it implements no trait for that, and its
/// memory is cleared when it is dropped.
pub struct Secret(Zeroizing<Vec<u8>>);

/// Why a value cannot be a secret, without the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    #[error(
        "it has {0} bytes without white space around it: expected at least {SECRET_BYTES_MIN}, because shorter ones cannot \
         be masked in output"
    )]
    TooShort(usize),
    #[error("it has more than {SECRET_BYTES_MAX} bytes")]
    TooLarge,
    #[error("it is not UTF-8 text without NUL bytes, as variables must be: ask for it as a file")]
    NoText,
}

impl Secret {
    /// Checks that the value can be masked.
    ///
    /// # Errors
    ///
    /// Fails if it is too short or too large.
    pub fn new(value: Vec<u8>) -> Result<Self, BadSecret> {
        let secret = Self(Zeroizing::new(value));
        let length = secret.core().len();
        if length < SECRET_BYTES_MIN {
            return Err(BadSecret::TooShort(length));
        }
        if secret.0.len() > SECRET_BYTES_MAX {
            return Err(BadSecret::TooLarge);
        }
        Ok(secret)
    }

    /// The bytes, for the process that the secret is for.
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }

    /// The text for an environment variable: without the line break that editors put at the end of a file.
    ///
    /// # Errors
    ///
    /// Fails if a variable cannot have this value.
    pub fn reveal_as_variable(&self) -> Result<&str, BadSecret> {
        let text = std::str::from_utf8(&self.0).map_err(|_| BadSecret::NoText)?;
        let text = text.strip_suffix('\n').map_or(text, |text| text.strip_suffix('\r').unwrap_or(text));
        if text.contains('\0') { Err(BadSecret::NoText) } else { Ok(text) }
    }

    /// The value without white space around it, as it is searched for.
    fn core(&self) -> &[u8] {
        self.0.trim_ascii()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_cannot_be_masked_are_refused_without_naming_them() {
        let refused = |value: &str| Secret::new(value.into()).err().map(|why| why.to_string());
        assert!(refused("hunter2").is_none() && refused("abcd\n").is_none());
        for short in ["", "abc", "  abc\n", "\n\n\n\n\n"] {
            let why = refused(short).unwrap();
            assert!(why.contains("at least 4") && !why.contains("abc"), "{why}");
        }
        assert!(Secret::new(vec![b'x'; SECRET_BYTES_MAX]).is_ok());
        assert_eq!(Secret::new(vec![b'x'; SECRET_BYTES_MAX + 1]).err(), Some(BadSecret::TooLarge));
    }

    #[test]
    fn a_variable_has_no_line_break_of_an_editor() {
        let variable = |value: &[u8]| {
            let secret = Secret::new(value.to_vec()).unwrap();
            secret.reveal_as_variable().map(ToOwned::to_owned)
        };
        for value in ["token", "token\n", "token\r\n"] {
            assert_eq!(variable(value.as_bytes()).unwrap(), "token");
        }
        assert_eq!(variable(b"a\nbcd\n\n").unwrap(), "a\nbcd\n");
        for binary in [b"abc\xffdef".as_slice(), b"abc\0def"] {
            assert_eq!(variable(binary).unwrap_err(), BadSecret::NoText);
        }
    }
}
