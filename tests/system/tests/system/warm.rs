//! Warm workspaces: what a build leaves, who may use it, and what never stays.

mod by_hand;
mod kept;
mod late;
mod poison;
mod sources;
mod tools;

use farm::Farm;
use model::{BuildKey, BuildRecord, BuildRequest, Context, Outcome, WorkspaceKind, WorkspaceUse};

use crate::check::{ended_as, script};

/// One worker with one workspace, so that there is one to choose.
async fn one_workspace() -> Farm {
    Farm::builder().without("gateway").workspaces(1).start().await
}

/// A shell script that takes what a similar build left, and leaves its own.
fn warm(text: &str) -> BuildRequest {
    BuildRequest { workspace: WorkspaceUse::Warm, ..script(text) }
}

/// Likewise, with this content.
fn warm_in(context: &Context, command: &[&str]) -> BuildRequest {
    let command = command.iter().map(|word| (*word).to_owned()).collect();
    BuildRequest { context: context.clone(), command, ..warm("") }
}

fn kind_of(record: &BuildRecord) -> Option<WorkspaceKind> {
    record.invocation().unwrap().workspace_kind
}

/// Runs a build, which succeeds; returns how its workspace was chosen.
async fn run(farm: &Farm, request: BuildRequest) -> (Option<WorkspaceKind>, BuildKey) {
    let key = farm.submit("g", request).await;
    let record = ended_as(farm, &key, Outcome::Succeeded).await;
    (kind_of(&record), key)
}
