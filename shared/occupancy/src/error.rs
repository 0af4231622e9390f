use thiserror::Error;

/// Why bytes cannot be decoded to a model.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes do not begin with the magic number of a model.
    #[error("not an occupancy model: the magic number is missing; check the source of the bytes")]
    NotAModel,
    /// Another version of this program, with a different format, wrote the model.
    #[error(
        "the occupancy model has format {found}, but this program reads {known}; run this \
         program and the trainer from the same release"
    )]
    OtherFormat { found: u16, known: u16 },
    /// The checksum does not match the content, or bytes are missing.
    #[error("the occupancy model is damaged: checksum mismatch; fetch it again or retrain")]
    Damaged,
    /// The content is invalid, although its checksum is right.
    #[error("the occupancy model contains an invalid {what}; retrain it")]
    Wrong { what: &'static str },
    /// A weight or an error is not a finite number.
    #[error("the occupancy model contains a {what} that is not a finite number; retrain it")]
    NotFinite { what: &'static str },
}
