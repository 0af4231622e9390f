use thiserror::Error;

/// Why bytes are not a model to run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes do not begin as a model does.
    #[error("the bytes are no occupancy model: they do not begin as one; check what was read")]
    NotAModel,
    /// Written by a program with another format.
    #[error(
        "the occupancy model has format {found}, this program reads {known}; run the trainer and this program in the same release"
    )]
    OtherFormat {
        /// Format of the model.
        found: u16,
        /// Format this program reads.
        known: u16,
    },
    /// There are fewer bytes than there should be, or more.
    #[error("the occupancy model is {found} bytes long instead of {expected}; fetch it again, or train anew")]
    Length {
        /// Bytes there should be.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// The checksum is another.
    #[error("the occupancy model is damaged: its checksum is wrong; fetch it again, or train anew")]
    Damaged,
    /// The content is not what a model holds, though its checksum is right.
    #[error("the occupancy model holds a wrong {what}; train anew")]
    Wrong {
        /// Which part.
        what: &'static str,
    },
    /// A weight or an error is not a finite number.
    #[error("the occupancy model holds a {what} that is not a finite number; train anew")]
    NotFinite {
        /// Which part.
        what: &'static str,
    },
}
