//! The specification of an action: its Action and Command, read from the CAS and checked.

use std::{collections::BTreeMap, time::Duration};

use cas::Cas;
use model::{
    BlobDigest, Execution, Interactor, ServiceRequest, SharedServices, SharedServicesId, TaskLimits,
};
use policy::actions::{
    asked_interactor, asked_services, asked_shared_services, asks_writable_root, limits, network,
};
use prost::Message as _;
use reapi::execution::{Action, Command, Platform};

use crate::outcome::Fault;

/// An action that is ready to be prepared.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) command: Command,
    pub(crate) input_root: BlobDigest,
    pub(crate) timeout: Duration,
    /// Limits set by its client.
    pub(crate) limits: TaskLimits,
    /// Whether it asks for the network of the machine.
    pub(crate) network: bool,
    /// Whether it writes to the folders of its image.
    pub(crate) writable_root: bool,
    /// Commands that serve its command while it runs.
    pub(crate) services: Vec<ServiceRequest>,
    /// What it has to do with services that several actions share, and their id.
    pub(crate) shared_services: Option<(SharedServices, SharedServicesId)>,
    /// The command that its command talks with.
    pub(crate) interactor: Option<Interactor>,
}

impl Spec {
    /// Whether the command shares a network with commands of others, or with some that may outlive it.
    pub(crate) fn meets_others(&self) -> bool {
        self.network || !self.services.is_empty() || self.shared_services.is_some()
    }

    /// Reads the Action and Command of `execution`.
    pub(crate) async fn read(
        cas: &Cas,
        execution: &Execution,
        offered: &BTreeMap<String, Vec<String>>,
    ) -> Result<Self, Fault> {
        let function = execution.action.function;
        let action = fetch(cas, &execution.action).await?;
        let action = Action::decode(action.as_slice()).map_err(|error| malformed("Action", &error))?;
        let digest = |name: &str, digest: Option<&reapi::execution::Digest>| {
            let digest = digest.ok_or_else(|| Fault::invalid(format!("the action has no {name}")))?;
            reapi::digest::from_proto(digest, function)
                .map_err(|error| Fault::invalid(format!("the action's {name}: {error}")))
        };
        let command_digest = digest("command_digest", action.command_digest.as_ref())?;
        let input_root = match &action.input_root_digest {
            None => function.empty(),
            some => digest("input_root_digest", some.as_ref())?,
        };
        let command = fetch(cas, &command_digest).await?;
        let command = Command::decode(command.as_slice()).map_err(|error| malformed("Command", &error))?;
        if command.arguments.is_empty() {
            return Err(Fault::invalid("the command has no arguments".to_owned()));
        }
        let platform = platform(action.platform.as_ref(), &command);
        let limits = limits::read(&platform);
        let limits = limits.map_err(|invalid| Fault::invalid(invalid.to_string()))?;
        let services = asked_services(&platform).map_err(|invalid| Fault::invalid(invalid.to_string()))?;
        let shared_services = asked_shared_services(&platform);
        let shared_services = shared_services.map_err(|invalid| Fault::invalid(invalid.to_string()))?;
        let interactor =
            asked_interactor(&platform).map_err(|invalid| Fault::invalid(invalid.to_string()))?;
        let limits = limits::on_executor(&limits, offered);
        let timeout = execution.timeout_ms.min(limits.wall_ms.unwrap_or(u64::MAX));
        let timeout = Duration::from_millis(timeout);
        let network = network::is_asked(&platform);
        let writable_root = asks_writable_root(&platform);
        let runs_services = matches!(shared_services, Some((SharedServices::Runs, _)));
        if writable_root && execution.image.is_none() && !runs_services {
            return Err(Fault::invalid("writable-root needs an image (container-image)".to_owned()));
        }
        Ok(Self {
            command,
            input_root,
            timeout,
            limits,
            network,
            writable_root,
            services,
            shared_services,
            interactor,
        })
    }

    /// The environment variables as pairs.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let pair = |it: &reapi::execution::command::EnvironmentVariable| (it.name.clone(), it.value.clone());
        self.command.environment_variables.iter().map(pair).collect()
    }
}

/// The requested platform properties: the action's, or the command's if the action has none.
#[expect(deprecated, reason = "clients of 2.1 set the platform of the command only")]
fn platform(action: Option<&Platform>, command: &Command) -> Vec<(String, String)> {
    let own = action.filter(|platform| !platform.properties.is_empty()).or(command.platform.as_ref());
    let properties = own.map(|platform| platform.properties.as_slice()).unwrap_or_default();
    properties.iter().map(|property| (property.name.clone(), property.value.clone())).collect()
}

async fn fetch(cas: &Cas, digest: &BlobDigest) -> Result<Vec<u8>, Fault> {
    match cas.get(digest).await {
        Ok(Some(content)) => Ok(content.to_vec()),
        Ok(None) => Err(Fault::missing(vec![*digest])),
        Err(error) => Err(Fault::machine(&error)),
    }
}

fn malformed(what: &str, error: &prost::DecodeError) -> Fault {
    Fault::invalid(format!("the {what} cannot be decoded: {error}"))
}
