//! Asking a service, and telling its answers from its errors.

use std::error::Error as StdError;

use async_nats::{
    HeaderMap, Message, Request,
    client::RequestErrorKind,
    service::{NATS_SERVICE_ERROR, NATS_SERVICE_ERROR_CODE},
};
use bytes::Bytes;
use model::{ApiError, ErrorCode};

use crate::{
    Bus, Encoding, Subject,
    headers::{CONTENT_TYPE, TRACEPARENT, header},
};

/// A question that got no good answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The service says no.
    #[error(transparent)]
    Refused(#[from] ApiError),
    /// Nobody listens.
    #[error("nobody listens on {subject}")]
    NobodyListens {
        /// Where.
        subject: String,
    },
    /// No answer, or the connection was lost: whether it took effect is not known.
    #[error("no answer on {subject}")]
    Doubtful {
        /// Where.
        subject: String,
        /// Why.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The server takes no message of this size.
    #[error("the request of {bytes} bytes is larger than the server takes")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
}

impl Bus {
    /// Sends the JSON `payload` to whoever serves `subject` and returns the payload of the answer.
    pub async fn ask(
        &self,
        subject: &Subject,
        traceparent: Option<&str>,
        payload: Bytes,
    ) -> Result<Bytes, AskError> {
        let bytes = payload.len();
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, Encoding::Json.content_type());
        if let Some(trace) = traceparent {
            headers.insert(TRACEPARENT, trace);
        }
        let request = Request::new().headers(headers).payload(payload);
        let subject = subject.to_string();
        match self.client.send_request(subject.clone(), request).await {
            Ok(message) => answer(message),
            Err(error) => Err(match error.kind() {
                RequestErrorKind::NoResponders => AskError::NobodyListens { subject },
                RequestErrorKind::MaxPayloadExceeded => AskError::TooLarge { bytes },
                RequestErrorKind::TimedOut | RequestErrorKind::InvalidSubject | RequestErrorKind::Other => {
                    AskError::Doubtful { subject, source: Box::new(error) }
                }
            }),
        }
    }
}

/// The payload, or the error that the headers announce.
fn answer(message: Message) -> Result<Bytes, AskError> {
    let Some(code) = header(message.headers.as_ref(), NATS_SERVICE_ERROR_CODE) else {
        return Ok(message.payload);
    };
    if let Ok(error) = serde_json::from_slice::<ApiError>(&message.payload) {
        return Err(AskError::Refused(error));
    }
    let text = header(message.headers.as_ref(), NATS_SERVICE_ERROR).unwrap_or("the service failed");
    Err(AskError::Refused(ApiError::new(error_code(code), text)))
}

fn error_code(status: &str) -> ErrorCode {
    let all = [ErrorCode::InvalidRequest, ErrorCode::Conflict, ErrorCode::NotFound, ErrorCode::Unavailable];
    let known = |code: &ErrorCode| status.parse() == Ok(code.http_status());
    all.into_iter().find(known).unwrap_or(ErrorCode::Unavailable)
}
