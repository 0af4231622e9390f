//! Why a message cannot be archived.

/// Why a message cannot be archived. It is set aside with this reason.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error(transparent)]
    Subject(#[from] bus::ParseSubjectError),
    #[error(transparent)]
    Message(#[from] bus::BusError),
    #[error(transparent)]
    Payload(#[from] bus::DecodeError),
    #[error("the record names {named}, the subject another build or execution")]
    OtherKey { named: String },
    #[error("the headers of the message are incomplete")]
    Headers,
    #[error(transparent)]
    Events(#[from] build_events::PackError),
    #[error("its build events are in blob {blob}, which the store does not have")]
    NoBlob { blob: String },
}
