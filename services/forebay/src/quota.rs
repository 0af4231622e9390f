//! `forebay quota`

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode, time::Duration};

use bus::QuotaOf;
use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use model::{Esu, ExecutorType, Group, GroupStanding, Occupancy, Quota, QuotaReply};
use settings::Settings;

use crate::{
    failure::{Failure, say},
    farm::Farm,
    globals::Globals,
    request::amount,
    stdout,
};

const EXAMPLES: &str = "\
Examples:
  forebay quota set ci x86=500 gpu=20
      group ci has 500 ESU of x86 and 20 of gpu of its own; at once, nothing is restarted
  forebay quota set --default x86=10
      so much has each group without a quota of its own
  forebay quota
      shows what each group uses and may use, and why the head of its queue waits

As long as no quota is set, no group is limited.";

/// Options of `forebay quota`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct QuotaArgs {
    #[command(subcommand)]
    command: Option<QuotaCommand>,
    /// Show it again after each decision of the governor
    #[arg(long)]
    watch: bool,
}

#[derive(Debug, Subcommand)]
enum QuotaCommand {
    /// Set the quota of a group
    Set {
        /// The group
        #[arg(required_unless_present = "default", conflicts_with = "default")]
        group: Option<Group>,
        /// Of all groups without a quota of their own
        #[arg(long)]
        default: bool,
        /// ESU by executor type; a type that is not named is none of its own
        #[arg(required = true, value_name = "TYPE=ESU", value_parser = amount)]
        amounts: Vec<(ExecutorType, Esu)>,
    },
    /// Take the quota of a group away
    Unset {
        /// The group
        #[arg(required_unless_present = "default", conflicts_with = "default")]
        group: Option<Group>,
        /// Of all groups without a quota of their own
        #[arg(long)]
        default: bool,
    },
    /// Set all quotas as a file says: {"GROUP": {"TYPE": ESU}}, in JSON or YAML; the name `default` is that of all others
    Load {
        /// The file
        file: PathBuf,
    },
}

/// Shows or sets quotas.
pub(crate) async fn run(
    args: QuotaArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    match args.command {
        None => show(&farm, globals, args.watch).await?,
        Some(QuotaCommand::Set { group, amounts, .. }) => {
            let quota = Quota { esu: amounts.into_iter().collect() };
            check(&quota, settings)?;
            farm.client().bus().set_quota(&whose(group), Some(&quota)).await?;
            warn_of_sum(&farm, settings).await?;
        }
        Some(QuotaCommand::Unset { group, .. }) => farm.client().bus().set_quota(&whose(group), None).await?,
        Some(QuotaCommand::Load { file }) => load(&farm, settings, &file).await?,
    }
    Ok(ExitCode::SUCCESS)
}

fn whose(group: Option<Group>) -> QuotaOf {
    group.map_or(QuotaOf::Others, QuotaOf::Group)
}

fn check(quota: &Quota, settings: &Settings) -> Result<(), Failure> {
    for (kind, amount) in quota.esu.iter() {
        if !settings.executor_types.contains_key(kind) {
            let known: Vec<&str> = settings.executor_types.keys().map(ExecutorType::as_str).collect();
            let known = known.join(", ");
            return Err(Failure::usage(format!("executor type {kind} is unknown here; known are {known}")));
        }
        if amount < Esu::ZERO {
            return Err(Failure::usage(format!("{amount} ESU of {kind} is no quota: 0 or more is expected")));
        }
    }
    Ok(())
}

/// All at once as far as possible: nothing is set unless everything can be.
async fn load(farm: &Farm, settings: &Settings, file: &PathBuf) -> Result<(), Failure> {
    let usage = |error: &dyn std::error::Error| {
        Failure::new(crate::failure::USAGE, format!("cannot read {}", file.display()), error)
    };
    let text = std::fs::read_to_string(file).map_err(|error| usage(&error))?;
    // JSON is YAML too.
    let wanted: BTreeMap<Group, Occupancy> = serde_norway::from_str(&text).map_err(|error| usage(&error))?;
    let wanted: BTreeMap<Group, Quota> =
        wanted.into_iter().map(|(group, esu)| (group, Quota { esu })).collect();
    wanted.values().try_for_each(|quota| check(quota, settings))?;
    let bus = farm.client().bus();
    let known = bus.quotas(|_| ()).await?;
    let named = |group: &Group| {
        if group.as_str() == "default" { QuotaOf::Others } else { QuotaOf::Group(group.clone()) }
    };
    for (group, quota) in &wanted {
        bus.set_quota(&named(group), Some(quota)).await?;
    }
    for group in known.groups.keys().filter(|group| !wanted.contains_key(*group)) {
        bus.set_quota(&QuotaOf::Group(group.clone()), None).await?;
    }
    if known.default.is_some() && !wanted.keys().any(|group| group.as_str() == "default") {
        bus.set_quota(&QuotaOf::Others, None).await?;
    }
    warn_of_sum(farm, settings).await
}

/// More than the farm has is no error: the quotas then say how what there is is shared.
async fn warn_of_sum(farm: &Farm, settings: &Settings) -> Result<(), Failure> {
    let quotas = farm.client().bus().quotas(|_| ()).await?;
    for (kind, capacity) in settings.capacity.iter() {
        let sum: Esu = quotas.groups.values().map(|quota| quota.esu.get(kind)).sum();
        if sum > capacity {
            say(&format!(
                "quotas of {kind} add up to {sum} ESU, the farm has {capacity}: each counts as its part of that"
            ));
        }
    }
    Ok(())
}

async fn show(farm: &Farm, globals: &Globals, watch: bool) -> Result<(), Failure> {
    let mut changes = farm.client().bus().quota_changes().await?;
    loop {
        let reply = farm.call(async |client| client.quota().await).await?;
        if globals.json {
            stdout::json(&reply)?;
        } else {
            stdout::line(&text(&reply))?;
        }
        if !watch {
            return Ok(());
        }
        // Again after the next decision, and at last once a while: while nothing runs none is made.
        let _ = tokio::time::timeout(Duration::from_secs(10), changes.next()).await;
        stdout::line("")?;
    }
}

fn text(reply: &QuotaReply) -> String {
    if reply.groups.is_empty() && reply.default.is_none() {
        return "no quota is set: no group is limited".to_owned();
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let header = [
        "GROUP",
        "TYPE",
        "QUOTA",
        "PV",
        "SP",
        "BORROWED",
        "MV",
        "TARGET",
        "IN PROGRESS",
        "QUEUED",
        "WAITS FOR",
    ];
    table.set_header(header);
    for group in &reply.groups {
        rows(&mut table, group);
    }
    let mut lines = vec![table.trim_fmt()];
    if let Some(default) = &reply.default {
        lines.push(format!("each group without a quota: {} ESU", default.esu));
    }
    lines.join("\n")
}

fn rows(table: &mut Table, group: &GroupStanding) {
    let empty = Occupancy::default();
    let quota = group.quota.as_ref().map_or(&empty, |quota| &quota.esu);
    let kinds: std::collections::BTreeSet<&ExecutorType> =
        quota.0.keys().chain(group.governed.keys()).chain(group.in_progress.0.keys()).collect();
    for (at, kind) in kinds.into_iter().enumerate() {
        let governed = group.governed.get(kind).copied();
        let of = |amount: fn(&model::Governed) -> Esu| {
            governed.as_ref().map_or_else(|| "-".to_owned(), |governed| amount(governed).to_string())
        };
        let first = |text: String| if at == 0 { text } else { String::new() };
        table.add_row([
            first(group.group.to_string()),
            kind.to_string(),
            quota.get(kind).to_string(),
            of(|governed| governed.pv),
            of(|governed| governed.sp),
            of(|governed| governed.borrowed),
            of(|governed| governed.mv),
            of(|governed| governed.target),
            group.in_progress.get(kind).to_string(),
            first(group.queued.to_string()),
            first(group.throttled.clone().unwrap_or_default()),
        ]);
    }
}
