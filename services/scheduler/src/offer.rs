//! Offering committed executions to their executor, many to a message.

use std::sync::{Arc, Mutex, PoisonError};

use async_nats::client::RequestErrorKind;
use bus::{Encoding, Subject, decode, encode};
use bytes::Bytes;
use index::actions::{Answer, Committed, Verdict};
use model::{ExecutionOfferReply, ExecutionVerdict, Millis, Sequence};
use serde::Serialize;
use serde_json::value::RawValue;
use service::{Context, Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tracing::{debug, warn};

use crate::Wakes;

/// Executions in a message at most, and bytes of their records: well below what the server takes.
const MESSAGE_MAX: usize = 128;
const MESSAGE_BYTES: usize = 256 << 10;

/// Answers of executors that are to be settled with the next pass.
#[derive(Clone, Default)]
pub(crate) struct Answers(Arc<Mutex<Vec<Answer>>>);

impl Answers {
    pub(crate) fn take(&self) -> Vec<Answer> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn put_back(&self, answers: Vec<Answer>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(answers);
    }
}

/// `model::ExecutionOffers`, with the records as they are stored.
#[derive(Serialize)]
struct Offers<'a> {
    offers: Vec<Offer<'a>>,
}

/// `model::ExecutionOffer`.
#[derive(Serialize)]
struct Offer<'a> {
    record: &'a RawValue,
    sequence: Sequence,
    deadline_ms: Millis,
}

/// Offers `committed`, all to the same executor, and notes what it says. Without an answer the deadline settles it.
pub(crate) async fn offer(
    context: Context,
    wakes: Wakes,
    answers: Answers,
    committed: Vec<Committed>,
    deadline: Millis,
) {
    let mut rest = committed.as_slice();
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = rest.iter().take(MESSAGE_MAX).take_while(|it| {
            bytes += it.record.len();
            bytes <= MESSAGE_BYTES
        });
        let (part, later) = rest.split_at(fits.count().max(1));
        rest = later;
        let said = ask(&context, part, deadline).await;
        crash_point(Step::ActionOffered);
        let freed = said.iter().any(|answer| answer.verdict != Verdict::Taken);
        answers.put_back(said);
        if freed {
            wakes.dispatch.notify_one();
        }
    }
}

async fn ask(context: &Context, part: &[Committed], deadline: Millis) -> Vec<Answer> {
    let Some(executor) = part.first().map(|it| it.pick.executor.clone()) else { return Vec::new() };
    let Some(payload) = message(part, deadline) else { return Vec::new() };
    let answer = |it: &Committed, verdict| Answer { pick: it.pick.clone(), sequence: it.sequence, verdict };
    let subject = Subject::ExecutorOffer(executor.clone()).to_string();
    match context.bus.client().request(subject, payload).await {
        Ok(reply) => match decode::<ExecutionOfferReply>(Encoding::Json, &reply.payload) {
            Ok(reply) => {
                let verdicts = part.iter().zip(reply.verdicts);
                verdicts.map(|(it, verdict)| answer(it, read(verdict))).collect()
            }
            Err(error) => {
                warn!(%executor, error = telemetry::error_chain(&error), "the executor's answer cannot be read");
                Vec::new()
            }
        },
        Err(error) if error.kind() == RequestErrorKind::NoResponders => {
            debug!(%executor, "the executor is gone");
            count(Counter::ExecutionOffers, &[(Label::Verdict, "gone")], part.len() as u64);
            part.iter().map(|it| answer(it, Verdict::Gone)).collect()
        }
        Err(error) => {
            debug!(%executor, %error, "no answer to an offer; its deadline settles it");
            Vec::new()
        }
    }
}

fn read(verdict: ExecutionVerdict) -> Verdict {
    let (label, verdict) = match verdict {
        ExecutionVerdict::Taken => ("taken", Verdict::Taken),
        ExecutionVerdict::Busy => ("busy", Verdict::Busy),
    };
    count(Counter::ExecutionOffers, &[(Label::Verdict, label)], 1);
    verdict
}

/// The message; `None` when a record is not what was stored, which only a fault of Redis makes.
fn message(part: &[Committed], deadline_ms: Millis) -> Option<Bytes> {
    let one = |it: &'_ Committed| -> Result<Box<RawValue>, serde_json::Error> {
        RawValue::from_string(it.record.clone())
    };
    match part.iter().map(one).collect::<Result<Vec<_>, _>>() {
        Ok(records) => {
            let offers = part.iter().zip(&records);
            let offers = offers.map(|(it, record)| Offer { record, sequence: it.sequence, deadline_ms });
            Some(encode(Encoding::Json, &Offers { offers: offers.collect() }))
        }
        Err(error) => {
            warn!(%error, "redis holds a record that cannot be read; offers are not made");
            None
        }
    }
}

#[cfg(test)]
mod tests;
