//! Reads the frames of long console output from the store, for `watch`, `logs` and `submit --follow`.

use bytes::Bytes;
use client::{WatchBody, WatchEvent};
use remote::Remote;
use settings::Settings;

use crate::{failure::Failure, farm::Farm, globals::Globals, remote::GatewayArgs};

/// The store of a farm, to which it connects when the first frame is read.
pub(crate) struct Frames<'a> {
    farm: &'a Farm,
    globals: &'a Globals,
    settings: &'a Settings,
    store: Option<Remote>,
}

impl<'a> Frames<'a> {
    pub(crate) fn new(farm: &'a Farm, globals: &'a Globals, settings: &'a Settings) -> Self {
        Self { farm, globals, settings, store: None }
    }

    /// Reads the output of an event that is in the store.
    pub(crate) async fn fill(&mut self, event: &mut WatchEvent) {
        let WatchBody::Frame(frame) = &mut event.body else { return };
        let blob = match frame.blob() {
            Some(digest) => match self.store().await {
                Ok(store) => store.read(&digest).await.map(Bytes::from).map_err(|error| error.to_string()),
                Err(failure) => Err(failure.line().to_owned()),
            },
            None => Err("it is larger than a frame can be".to_owned()),
        };
        frame.fill(blob);
    }

    async fn store(&mut self) -> Result<&Remote, Failure> {
        let store = match self.store.take() {
            Some(store) => store,
            None => GatewayArgs::default().connect(self.farm, self.globals, self.settings).await?,
        };
        Ok(self.store.insert(store))
    }
}
