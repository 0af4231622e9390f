//! Options of `forebay up`.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use settings::{SandboxKind, Settings};

use crate::{input::StopAtEof, scale::Bounds};

/// Run a whole farm on this machine until Ctrl-C
///
/// All data is in the folder --data, which only one `up` at a time may use. It starts a nats-server and a
/// redis-server unless --nats or --redis (or the settings) point elsewhere.
#[expect(clippy::struct_excessive_bools, reason = "each is an independent option")]
#[derive(Debug, Clone, clap::Args)]
pub struct UpArgs {
    /// Port for nats-server (0 = any free port); ignored if --nats points elsewhere
    #[arg(long, value_name = "PORT", default_value_t = 4222)]
    pub(crate) nats_port: u16,
    /// Port for redis-server (0 = any free port); ignored if --redis points elsewhere
    #[arg(long, value_name = "PORT", default_value_t = 6379)]
    pub(crate) redis_port: u16,
    /// Port for the HTTP API (0 = any free port) [default: port of the setting `http_listen`, 8080]
    #[arg(long, value_name = "PORT")]
    pub(crate) http_port: Option<u16>,
    /// Port for the Remote Execution API (0 = any free port) [default: port of the setting `grpc_listen`, 8980]
    #[arg(long, value_name = "PORT")]
    pub(crate) grpc_port: Option<u16>,
    /// When nats-server syncs to disk: `always` survives a power failure but is slower
    #[arg(long, value_enum, value_name = "WHEN", env = "FOREBAY_NATS_SYNC", default_value = "default")]
    pub(crate) sync: Sync,
    /// Admit only those who have a key, with TLS: make an authority, keys and rules in `secure` of the data folder,
    /// unless they are there
    #[arg(long)]
    pub(crate) secure: bool,
    /// Start and set up the servers only, no services
    #[arg(long)]
    pub(crate) no_services: bool,
    /// Number of workspaces per worker: builds that it runs in parallel [default: two per processor]
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) workspaces: Option<u16>,
    /// Number of workers (ignored with --autoscale workers=...)
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) workers: u16,
    /// Number of executors (ignored with --autoscale executors=...)
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) executors: u16,
    /// Number of actions that each executor runs in parallel [default: one per processor]
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) executor_slots: Option<u16>,
    /// Autoscale a pool, e.g. workers=0..4 or executors=1..8 (repeatable); tuning is in the `autoscale` setting
    #[arg(long, value_name = "POOL=MIN..MAX")]
    pub(crate) autoscale: Vec<Bounds>,
    /// URL of the store of all blobs, the same for all machines of a farm: `s3://BUCKET/PREFIX`, `gs://…`, `az://…`,
    /// `file:///PATH`, or `grpc://HOST:PORT` of a gateway [default: `cas` in the data folder]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Make the store of this `up` the store of the farm, in place of the one recorded on NATS; restart the other
    /// services of the farm afterwards
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Show the whole log on a terminal [default: only problems; the whole log is in logs/up.log of the data folder]
    #[arg(long, short)]
    pub verbose: bool,
    /// Sandbox for actions: `none` if the machine cannot run bubblewrap [default: the setting `sandbox`, bubblewrap]
    #[arg(long, value_name = "HOW", value_parser = sandbox_kinds())]
    pub(crate) sandbox: Option<SandboxKind>,
    #[command(flatten)]
    pub(crate) stop_at_eof: StopAtEof,
}

/// Parses a number of workspaces or of actions in parallel.
pub fn count(text: &str) -> Result<u16, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "expected 1 to 65535".to_owned())
}

fn sandbox_kinds() -> impl TypedValueParser<Value = SandboxKind> {
    PossibleValuesParser::new(["bubblewrap", "none"]).try_map(|name| name.parse::<SandboxKind>())
}

impl UpArgs {
    /// Sets the bounds of autoscaled pools in the settings.
    pub fn apply_autoscale(&self, settings: &mut Settings) {
        self.autoscale.iter().for_each(|bounds| bounds.apply(settings));
    }
}

/// When nats-server syncs to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Sync {
    /// Every two minutes: acknowledged data survives a crash of the server, not of the machine
    #[default]
    Default,
    /// Before each acknowledgement: acknowledged data survives a power failure
    Always,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: UpArgs,
    }

    #[test]
    fn every_option_has_a_value_that_can_be_read() {
        let line = "up --sandbox none --nats-port 0 --sync always --autoscale workers=0..4 --store file:///x";
        let command = Command::try_parse_from(line.split(' ')).unwrap();
        assert_eq!(command.args.sandbox, Some(SandboxKind::None));
        assert!(Command::try_parse_from(["up", "--sandbox", "chroot"]).is_err());
        let error = Command::try_parse_from(["up", "--workspaces", "0"]).unwrap_err().to_string();
        assert!(error.contains("expected 1 to 65535"), "{error}");
    }
}
