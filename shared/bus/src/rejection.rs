//! Notices of published requests that were refused.

use async_nats::HeaderMap;
use model::Rejection;

use crate::{
    Bus, BusError, Encoding, Message, Subject,
    headers::{CONTENT_TYPE, MESSAGE_ID},
    message,
};

message!(Rejection);

impl Bus {
    /// Stores a rejection. It carries the message id of the refused request, so that a repetition is not stored.
    pub async fn publish_rejection(&self, rejection: &Rejection) -> Result<(), BusError> {
        let what = "publishing a rejection";
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, Encoding::Json.content_type());
        if let Some(id) = &rejection.message_id {
            headers.insert(MESSAGE_ID, id.as_str());
        }
        let subject = Subject::Rejected(rejection.group.clone()).to_string();
        let payload = rejection.to_json();
        let sent = self.js.publish_with_headers(subject, headers, payload).await;
        sent.map_err(BusError::failed(what))?.await.map_err(BusError::failed(what))?;
        Ok(())
    }
}
