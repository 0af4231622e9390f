//! How the builds of this worker are separated from the machine: what it offers, and what a build gets.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use model::{Build, BuildRequirements, Group, WorkerProperties};
use policy::{
    actions::SERVICES_OFFER,
    environments::{BUILDS_ENVIRONMENTS, ENVIRONMENT_TOOLS},
};
use sandbox::{Bubblewrap, Network, SandboxError, WorkspaceSandbox, make_nodes};
use service::ServiceError;
use settings::{BuildNetwork, BuildSandbox, EnvironmentBuilds, SandboxKind, SandboxSettings, WorkerSettings};
use tracing::{info, warn};

use crate::{folder::WorkerFolder, search_path::search_path};

/// Requirement that chooses the sandbox of a build.
const SANDBOX: &str = "sandbox";
/// Requirement that chooses the network of a build.
const NETWORK: &str = "network";

/// The sandboxes that builds may have here.
pub(crate) struct Isolation {
    choices: Choices,
    /// Whether it makes the images of environments.
    environments: bool,
    /// One for each network; empty if this machine does not support them.
    sandboxes: Vec<(BuildNetwork, Arc<WorkspaceSandbox>)>,
}

/// What a build gets, and what it may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Choices {
    /// The network of the sandbox of a build that asks for nothing; without one, it has no sandbox.
    usual: Option<BuildNetwork>,
    /// Whether the machine supports sandboxes.
    supported: bool,
    /// Whether builds may ask for less isolation than usual.
    less: bool,
}

impl Choices {
    /// The network of the sandbox that the build gets; `None`: no sandbox, which builds in images and with services need
    /// (`needs_one`). Dispatchers offer builds only to workers that have what they require.
    fn of(self, requirements: &BuildRequirements, needs_one: bool) -> Option<BuildNetwork> {
        let asked = |name: &str| requirements.iter().find(|(it, _)| *it == name).map(|(_, value)| value);
        let network = asked(NETWORK)
            .and_then(|name| BuildNetwork::ALL.into_iter().find(|network| network.as_str() == name))
            .filter(|network| self.networks().contains(network));
        let asks_for_none = asked(SANDBOX) == Some(SandboxKind::None.as_str()) && !needs_one;
        if asks_for_none && self.kinds().contains(&SandboxKind::None) {
            return None;
        }
        let is_sandboxed = asked(SANDBOX) == Some(SandboxKind::Bubblewrap.as_str()) || needs_one;
        if is_sandboxed && self.supported {
            return Some(network.or(self.usual).unwrap_or(BuildNetwork::Host));
        }
        match (network, self.usual) {
            // Without a sandbox the network is that of the machine.
            (None | Some(BuildNetwork::Host), None) => None,
            (network, usual) => network.or(usual),
        }
    }

    fn kinds(self) -> Vec<SandboxKind> {
        let (bubblewrap, none) = (SandboxKind::Bubblewrap, SandboxKind::None);
        match (self.usual, self.less) {
            (Some(_), true) => vec![bubblewrap, none],
            (Some(_), false) => vec![bubblewrap],
            (None, _) if self.supported => vec![none, bubblewrap],
            (None, _) => vec![none],
        }
    }

    fn networks(self) -> Vec<BuildNetwork> {
        let usual = self.usual.unwrap_or(BuildNetwork::Host);
        let offered =
            |network: &BuildNetwork| *network == usual || self.supported && (self.less || *network > usual);
        let mut networks: Vec<BuildNetwork> = BuildNetwork::ALL.into_iter().filter(offered).collect();
        // The usual one comes first.
        networks.sort_by_key(|network| (*network != usual, *network));
        networks
    }
}

impl Isolation {
    /// Prepares the sandboxes that the settings want and this machine supports; fails if it does not support the usual one.
    pub(crate) async fn new(
        settings: &WorkerSettings,
        folder: &WorkerFolder,
        program: &Path,
    ) -> Result<Self, ServiceError> {
        let with = |network| Arc::new(sandbox(settings, folder, network));
        let sandboxes = BuildNetwork::ALL.map(|network| (network, with(network)));
        let usual = sandbox(settings, folder, settings.network);
        let checked = usual.check(program, folder.path()).await;
        let less = settings.sandbox_by_request;
        let choices = match (settings.sandbox, checked) {
            (BuildSandbox::Bubblewrap, Err(error)) => {
                return Err(ServiceError::failed("preparing the sandbox of builds", error));
            }
            (BuildSandbox::None, checked) => Choices { usual: None, supported: checked.is_ok(), less },
            (BuildSandbox::Bubblewrap | BuildSandbox::Auto, Ok(())) => {
                info!(network = settings.network.as_str(), "builds run in a sandbox");
                Choices { usual: Some(settings.network), supported: true, less }
            }
            (BuildSandbox::Auto, Err(error)) => {
                warn_of(&error);
                Choices { usual: None, supported: false, less }
            }
        };
        let sandboxes = if choices.supported { sandboxes.to_vec() } else { Vec::new() };
        let environments = settings.environments == EnvironmentBuilds::Allowed;
        if environments {
            check_tools()?;
        }
        Ok(Self { choices, environments, sandboxes })
    }

    /// The properties of the worker by which builds choose, and those of its settings.
    pub(crate) fn properties(&self, own: &WorkerProperties) -> WorkerProperties {
        let kinds = self.choices.kinds().iter().map(|kind| kind.as_str().to_owned()).collect();
        let networks = self.choices.networks().iter().map(|network| network.as_str().to_owned()).collect();
        let mut all = own.clone();
        all.0.insert(SANDBOX.to_owned(), kinds);
        all.0.insert(NETWORK.to_owned(), networks);
        if self.environments {
            let (name, value) = BUILDS_ENVIRONMENTS;
            all.0.insert(name.to_owned(), vec![value.to_owned()]);
        }
        if self.choices.supported {
            let (services, on) = SERVICES_OFFER;
            all.0.insert(services.to_owned(), vec![on.to_owned()]);
        }
        all
    }

    /// Checks that no build can read the secrets of others: without a sandbox it could.
    pub(crate) fn check_secrets(&self) -> Result<(), ServiceError> {
        if self.choices.kinds().contains(&SandboxKind::None) {
            return Err(ServiceError::failed(
                "opening the secrets of builds (secrets_folder)",
                "builds of this worker may run without a sandbox and could read all of them: set build_sandbox = bubblewrap, \
                 and build_sandbox_by_request = false",
            ));
        }
        Ok(())
    }

    /// Whether a build makes the image of an environment, as only those of one group may: the right to publish to it is the right
    /// to run without a sandbox.
    fn makes_environment(&self, build: &Build) -> bool {
        let (name, value) = BUILDS_ENVIRONMENTS;
        let asks = build.requirements.0.get(name).is_some_and(|asked| asked == value);
        self.environments && asks && build.group == Group::of_environments()
    }

    /// Whether this machine supports sandboxes.
    pub(crate) fn is_supported(&self) -> bool {
        self.choices.supported
    }

    /// The sandbox of a build; `None`: it runs without, which no build does that `needs_one`.
    pub(crate) fn of(&self, build: &Build, needs_one: bool) -> Option<Arc<WorkspaceSandbox>> {
        if self.makes_environment(build) {
            return None;
        }
        let wanted = self.choices.of(&build.requirements, needs_one)?;
        self.sandboxes.iter().find(|(network, _)| *network == wanted).map(|(_, sandbox)| Arc::clone(sandbox))
    }
}

/// Checks that the programs are there that make images.
fn check_tools() -> Result<(), ServiceError> {
    // As the build looks for them.
    let folders: Vec<PathBuf> =
        std::env::split_paths(&search_path()).chain(["/usr/sbin", "/sbin"].map(PathBuf::from)).collect();
    let is_missing = |tool: &&&str| !folders.iter().any(|folder| folder.join(tool).is_file());
    let missing: Vec<&str> = ENVIRONMENT_TOOLS.iter().filter(is_missing).copied().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(", ");
    Err(ServiceError::failed(
        "preparing to make environments (build_environments)",
        format!("this machine does not have {missing}: install them, or set build_environments = false"),
    ))
}

fn warn_of(error: &SandboxError) {
    let error = telemetry::error_chain(error);
    warn!(error, "builds run without a sandbox, because this machine does not support it (build_sandbox)");
}

fn sandbox(settings: &WorkerSettings, folder: &WorkerFolder, network: BuildNetwork) -> WorkspaceSandbox {
    let SandboxSettings { read_only, hidden, filter } = settings.sandboxes.clone();
    let network = match network {
        BuildNetwork::Host => Network::Host,
        BuildNetwork::Loopback => Network::Loopback,
        BuildNetwork::None => Network::None,
    };
    let tmp_bytes_max = settings.limits.memory_bytes;
    let bubblewrap = Bubblewrap { filter, tmp_bytes_max, nodes: make_nodes(), ..Bubblewrap::default() };
    let bubblewrap = bubblewrap.showing(read_only).hiding(hidden);
    WorkspaceSandbox { bubblewrap, network, programs: folder.programs() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(usual: Option<BuildNetwork>, less: bool) -> Choices {
        Choices { usual, supported: true, less }
    }

    fn requirements(asked: &[(&str, &str)]) -> BuildRequirements {
        BuildRequirements(asked.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
    }

    #[test]
    fn a_build_may_always_ask_for_more_isolation() {
        let plain = choices(None, false);
        assert_eq!(plain.of(&requirements(&[]), false), None);
        assert_eq!(plain.of(&requirements(&[("network", "host")]), false), None);
        assert_eq!(plain.of(&requirements(&[("network", "none")]), false), Some(BuildNetwork::None));
        assert_eq!(plain.of(&requirements(&[("sandbox", "bubblewrap")]), false), Some(BuildNetwork::Host));
        let both = requirements(&[("sandbox", "bubblewrap"), ("network", "loopback")]);
        assert_eq!(plain.of(&both, false), Some(BuildNetwork::Loopback));
        assert_eq!(plain.of(&requirements(&[("sandbox", "none")]), true), Some(BuildNetwork::Host));
        assert_eq!(plain.kinds(), [SandboxKind::None, SandboxKind::Bubblewrap]);
        assert_eq!(plain.networks(), BuildNetwork::ALL);
    }

    #[test]
    fn less_isolation_is_given_only_where_the_settings_allow_it() {
        let less = requirements(&[("sandbox", "none"), ("network", "host")]);
        let strict = choices(Some(BuildNetwork::Loopback), false);
        assert_eq!(
            (strict.kinds(), strict.of(&less, false)),
            (vec![SandboxKind::Bubblewrap], Some(BuildNetwork::Loopback))
        );
        assert_eq!(strict.networks(), [BuildNetwork::Loopback, BuildNetwork::None]);
        let open = choices(Some(BuildNetwork::Loopback), true);
        assert_eq!(open.of(&less, false), None);
        assert_eq!(open.networks(), [BuildNetwork::Loopback, BuildNetwork::Host, BuildNetwork::None]);
    }

    #[test]
    fn a_machine_without_sandboxes_offers_none() {
        let without = Choices { usual: None, supported: false, less: false };
        assert_eq!(
            (without.kinds(), without.networks()),
            (vec![SandboxKind::None], vec![BuildNetwork::Host])
        );
        assert_eq!(without.of(&requirements(&[("sandbox", "bubblewrap")]), false), None);
    }
}
