//! Reads the frames of long console output from the store, for `watch`, `logs` and `submit --follow`.

use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Blobs, WatchBody, WatchEvent};
use command_line::globals::Globals;
use model::BlobDigest;
use remote::Remote;
use settings::Settings;

use crate::{farm::Farm, remote::GatewayArgs};

/// How long frames are given up at once after a failed connection, so that a log of many frames does not wait for each.
const RECONNECT_AFTER: Duration = Duration::from_secs(30);

/// The store of a farm, to which it connects when the first frame is read.
pub(crate) struct Frames<'a> {
    farm: &'a Farm,
    globals: &'a Globals,
    settings: &'a Settings,
    store: Option<Remote>,
    /// When the last connection failed, and why.
    failed: Option<(Instant, String)>,
}

impl<'a> Frames<'a> {
    pub(crate) fn new(farm: &'a Farm, globals: &'a Globals, settings: &'a Settings) -> Self {
        Self { farm, globals, settings, store: None, failed: None }
    }

    /// Reads the output of an event that is in the store.
    pub(crate) async fn fill(&mut self, event: &mut WatchEvent) {
        if let WatchBody::Frame(frame) = &mut event.body {
            frame.read(self).await;
        }
    }

    async fn store(&mut self) -> Result<&Remote, String> {
        if let Some((at, why)) = &self.failed
            && at.elapsed() < RECONNECT_AFTER
        {
            return Err(why.clone());
        }
        let store = match self.store.take() {
            Some(store) => store,
            None => match GatewayArgs::default().connect(self.farm, self.globals, self.settings).await {
                Ok(store) => store,
                Err(failure) => {
                    let why = failure.line().to_owned();
                    self.failed = Some((Instant::now(), why.clone()));
                    return Err(why);
                }
            },
        };
        Ok(self.store.insert(store))
    }
}

impl Blobs for Frames<'_> {
    async fn read(&mut self, digest: &BlobDigest) -> Result<Bytes, String> {
        let store = self.store().await?;
        store.read(digest).await.map(Bytes::from).map_err(|error| error.to_string())
    }
}
