//! Where the result of an action comes from, as the action cache keeps it.

use model::{Provenance, brief};

use crate::{held_actions::Work, shared::Shared, spec::Spec};

/// The provenance of the result of an action that ran here.
pub(crate) fn provenance(shared: &Shared, work: &Work, spec: &Spec) -> Provenance {
    let execution = &work.claimed.record.execution;
    Provenance {
        caller: execution.caller.clone(),
        build: execution.build.as_ref().map(ToString::to_string).unwrap_or_default(),
        zone: execution.zone.clone(),
        instance: execution.instance.clone(),
        action: execution.action,
        command: brief(spec.command.arguments.join(" ")),
        target: execution.client.target.clone(),
        execution: execution.key().to_string(),
        executor: shared.id.to_string(),
        home: shared.home.to_string(),
        host: shared.host.clone(),
        sandbox: shared.settings.sandbox.as_str().to_owned(),
        image: execution.image.as_ref().map(|image| image.manifest),
        at_ms: shared.context.bus.now(),
    }
}
