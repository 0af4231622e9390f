//! The services of an action: each runs in a slot and an input root of its own.

use command_services::{CommandServices, Failure, Parts, Stopped};
use input_root::{InputRoot, OutputSpec};
use model::{BlobDigest, DigestFunction, ServiceRequest};
use sandbox::{SharedNetwork, StopMode};

use crate::{needed_images::ActionImages, outcome::Fault, place::Place, shared::Shared, spec::Spec};

/// The services of an action, and what they use.
pub(crate) struct ActionServices {
    services: CommandServices,
    roots: Vec<InputRoot>,
}

impl ActionServices {
    /// Creates the folder and the network of the services. They need [`ActionServices::end`] from then on.
    pub(crate) async fn create(spec: &Spec, place: &Place) -> Result<Self, Fault> {
        let created =
            CommandServices::create(place.folder.clone(), &place.slot.program, &spec.services).await;
        let services = created.map_err(|error| Fault::machine(&error))?;
        Ok(Self { services, roots: Vec::new() })
    }

    /// Prepares the input roots and images. `memory_bytes` is the limit of services without one.
    pub(crate) async fn prepare(
        &mut self,
        shared: &Shared,
        spec: &Spec,
        place: &Place,
        (memory_bytes, images): (Option<u64>, &ActionImages),
    ) -> Result<(), Fault> {
        for request in &spec.services {
            self.add(shared, (spec, request), place, (memory_bytes, images)).await?;
        }
        Ok(())
    }

    /// The network of the services and of the commands that use them.
    pub(crate) fn network(&self) -> SharedNetwork {
        self.services.network()
    }

    async fn add(
        &mut self,
        shared: &Shared,
        (spec, request): (&Spec, &ServiceRequest),
        place: &Place,
        (memory_bytes, images): (Option<u64>, &ActionImages),
    ) -> Result<(), Fault> {
        let work = self.services.work(request).map_err(|error| Fault::machine(&error))?;
        let root = shared.inputs.prepare(&work, &spec.input_root, &OutputSpec::default()).await;
        let root = root.map_err(|error| Fault::unprepared(&error))?.watched(true);
        let path = root.path().to_owned();
        self.roots.push(root);
        let image = match &request.image {
            Some(reference) => Some(images.of_service(reference)?),
            None => None,
        };
        let parts = Parts {
            slot: place.slot_of(request.name.as_str(), work),
            root: path,
            image,
            allowed: shared.settings.action_limits,
            memory_bytes,
            output_bytes_max: shared.settings.action_output_bytes_max,
        };
        self.services.add(request, parts).map_err(|error| Fault::precondition(error.to_string()))
    }

    /// Starts the services; returns when all are ready.
    pub(crate) async fn start(&mut self, shared: &Shared, function: DigestFunction) -> Result<(), Fault> {
        match self.services.start().await {
            Ok(()) => Ok(()),
            Err(failure) => Err(self.fault_of(shared, function, failure).await),
        }
    }

    /// Returns when a service has ended although the command still runs.
    pub(crate) async fn fault(&mut self, shared: &Shared, function: DigestFunction) -> Fault {
        let failure = self.services.failure().await;
        self.fault_of(shared, function, failure).await
    }

    /// Stops the services as they ask for. Returns what they used, and why one of them had ended on its own.
    pub(crate) async fn stop(&mut self) -> Stopped {
        self.services.stop(StopMode::Gently).await
    }

    /// Stores what the services wrote, by the name of the service and of the stream. Empty outputs are left out.
    pub(crate) async fn keep_logs(
        &self,
        shared: &Shared,
        function: DigestFunction,
    ) -> Result<Vec<(String, BlobDigest)>, Fault> {
        let mut kept = Vec::new();
        for (name, path) in self.services.logs() {
            let stored = shared.cas.put_file(function, &path, false).await;
            kept.push((name, stored.map_err(|error| Fault::machine(&error))?));
        }
        Ok(kept)
    }

    /// Kills what still runs and removes the files of the services. Returns whether all processes are dead.
    pub(crate) async fn end(mut self, shared: &Shared) -> bool {
        if self.services.kill().await.is_none() {
            return false;
        }
        for root in self.roots {
            shared.inputs.release(root).await;
        }
        self.services.remove();
        true
    }

    /// The fault of the action, with all that its services wrote as logs.
    async fn fault_of(&self, shared: &Shared, function: DigestFunction, failure: Failure) -> Fault {
        let message = match failure {
            Failure::Service { message } => message,
            Failure::Machine { message } => return Fault::Machine { reason: message },
        };
        match self.keep_logs(shared, function).await {
            Ok(logs) => Fault::precondition(message).with_logs(logs),
            Err(fault) => fault,
        }
    }
}
