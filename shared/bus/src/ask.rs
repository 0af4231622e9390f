//! Requests to services, and the distinction between their answers and errors.

use std::error::Error as StdError;

use async_nats::{
    HeaderMap, Message, Request,
    client::RequestErrorKind,
    service::{NATS_SERVICE_ERROR, NATS_SERVICE_ERROR_CODE},
};
use bytes::Bytes;
use model::{ApiError, AuditText, ErrorCode};

use crate::{
    Bus, Denied, Encoding, Subject,
    headers::{CALLER, CONTENT_TYPE, TRACEPARENT, header},
};

/// A request without a successful answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The service returned an error.
    #[error(transparent)]
    Refused(#[from] ApiError),
    /// No service is subscribed to the subject.
    #[error("no service listens on {subject}")]
    NobodyListens { subject: String },
    #[error(transparent)]
    Denied(#[from] Denied),
    /// No answer arrived or the connection was lost: whether the request took effect is not known.
    #[error("no answer on {subject}")]
    Doubtful {
        subject: String,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The request exceeds the server's size limit.
    #[error("the request of {bytes} bytes is larger than the server accepts")]
    TooLarge {
        /// Size of the request in bytes.
        bytes: usize,
    },
}

impl Bus {
    /// Sends the JSON `payload` to the service on `subject` and returns the payload of its answer.
    pub async fn ask(
        &self,
        subject: &Subject,
        traceparent: Option<&str>,
        payload: Bytes,
    ) -> Result<Bytes, AskError> {
        self.ask_as(None, subject, traceparent, payload).await
    }

    /// The same with the name of the one for whom it is, which services do not check.
    pub async fn ask_as(
        &self,
        caller: Option<&str>,
        subject: &Subject,
        traceparent: Option<&str>,
        payload: Bytes,
    ) -> Result<Bytes, AskError> {
        let bytes = payload.len();
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, Encoding::Json.content_type());
        if let Some(caller) = caller {
            headers.insert(CALLER, AuditText::from(caller).as_str());
        }
        if let Some(trace) = traceparent {
            headers.insert(TRACEPARENT, trace);
        }
        let request = Request::new().headers(headers).payload(payload);
        let subject = subject.to_string();
        // Boxed: its state is large, and all calls contain it.
        let sent = Box::pin(self.client.send_request(subject.clone(), request));
        match self.unless_denied(&subject, sent).await? {
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

/// The payload, or the error given in the headers.
fn answer(message: Message) -> Result<Bytes, AskError> {
    match refusal(&message) {
        Some(error) => Err(AskError::Refused(error)),
        None => Ok(message.payload),
    }
}

/// The error that an answer has in its headers.
pub(crate) fn refusal(message: &Message) -> Option<ApiError> {
    let code = header(message.headers.as_ref(), NATS_SERVICE_ERROR_CODE)?;
    let text = header(message.headers.as_ref(), NATS_SERVICE_ERROR).unwrap_or("the service failed");
    let written = serde_json::from_slice(&message.payload).ok();
    Some(written.unwrap_or_else(|| ApiError::new(error_code(code), text)))
}

fn error_code(status: &str) -> ErrorCode {
    let all = [
        ErrorCode::InvalidRequest,
        ErrorCode::Conflict,
        ErrorCode::NotFound,
        ErrorCode::LimitReached,
        ErrorCode::Unavailable,
    ];
    let known = |code: &ErrorCode| status.parse() == Ok(code.http_status());
    all.into_iter().find(known).unwrap_or(ErrorCode::Unavailable)
}
