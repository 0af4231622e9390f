//! Applying the event stream, and rebuilding the index after Redis has lost it.

use model::Sequence;

use crate::{Index, IndexError, IndexEvent, script::META};

/// Outcome of applying a batch of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied<Effects> {
    /// The events are in the index. The effects are empty if they had been applied before.
    Done(Effects),
    /// The index is at this earlier position: read again from there.
    Gap(Sequence),
    /// There is no index: rebuild it.
    Empty,
    /// Another projector is rebuilding it: retry soon.
    Rebuilding,
    /// Another projector took over this rebuild.
    Lost,
}

impl<Effects> Applied<Effects> {
    /// The same outcome with other effects.
    pub fn map<Other>(self, change: impl FnOnce(Effects) -> Other) -> Applied<Other> {
        match self {
            Self::Done(effects) => Applied::Done(change(effects)),
            Self::Gap(watermark) => Applied::Gap(watermark),
            Self::Empty => Applied::Empty,
            Self::Rebuilding => Applied::Rebuilding,
            Self::Lost => Applied::Lost,
        }
    }

    /// The outcome that a script returned as `status` and `watermark`; `None` if the status is unknown, or if the
    /// effects cannot be read.
    pub(crate) fn read(
        status: &str,
        watermark: u64,
        effects: impl FnOnce() -> Option<Effects>,
    ) -> Option<Self> {
        match status {
            "applied" => effects().map(Self::Done),
            "gap" => Some(Self::Gap(Sequence(watermark))),
            "empty" => Some(Self::Empty),
            "rebuilding" => Some(Self::Rebuilding),
            "lost" => Some(Self::Lost),
            _ => None,
        }
    }
}

/// The right to rebuild the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuildToken(pub(crate) String);

/// Time to live of the rebuild token in milliseconds, renewed with every batch, which takes milliseconds. After a
/// projector's death, others can rebuild when it expires.
pub(crate) const REBUILD_TTL_MS: u64 = 3000;

impl Index {
    /// Applies `events`, read after position `from` up to position `to`.
    pub async fn apply(
        &self,
        from: Sequence,
        to: Sequence,
        events: &[&IndexEvent],
    ) -> Result<Applied<()>, IndexError> {
        self.apply_as("", from, to, events).await
    }

    /// Acquires the right to rebuild the index, and empties it; `None` if another projector has it.
    pub async fn begin_rebuild(&self) -> Result<Option<RebuildToken>, IndexError> {
        let token = uuid::Uuid::new_v4().simple().to_string();
        let mut invocation = self.scripts.begin_rebuild.prepare_invoke();
        invocation.key(META).arg(&token).arg(REBUILD_TTL_MS);
        let granted: u8 = self.invoke("begin_rebuild", &invocation).await?;
        Ok((granted == 1).then_some(RebuildToken(token)))
    }

    /// Adds `events` to the index being rebuilt.
    pub async fn load(
        &self,
        token: &RebuildToken,
        events: &[&IndexEvent],
    ) -> Result<Applied<()>, IndexError> {
        self.apply_as(&token.0, Sequence(0), Sequence(0), events).await
    }

    /// Declares the index ready at `watermark`; returns false if the right was lost. `order` names the
    /// order of its queues.
    pub async fn finish_rebuild(
        &self,
        token: &RebuildToken,
        watermark: Sequence,
        order: &str,
    ) -> Result<bool, IndexError> {
        let mut invocation = self.scripts.finish_rebuild.prepare_invoke();
        invocation.key(META).arg(&token.0).arg(watermark.0).arg(order);
        let done: u8 = self.invoke("finish_rebuild", &invocation).await?;
        Ok(done == 1)
    }

    async fn apply_as(
        &self,
        token: &str,
        from: Sequence,
        to: Sequence,
        events: &[&IndexEvent],
    ) -> Result<Applied<()>, IndexError> {
        let mut invocation = self.scripts.apply_events.prepare_invoke();
        invocation.key(META).arg(from.0).arg(to.0).arg(token).arg(REBUILD_TTL_MS).arg(events.len());
        for event in events {
            event.write(&mut invocation);
        }
        let what = "apply_events";
        let (status, watermark): (String, u64) = self.invoke(what, &invocation).await?;
        Applied::read(&status, watermark, || Some(())).ok_or(IndexError::Answer { what })
    }
}
