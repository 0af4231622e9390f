//! Warm workspaces: their contents, the builds that may use them, and data that is never kept.

mod by_hand;
mod kept;
mod late;
mod poison;
mod sources;
pub(crate) mod tools;

use farm::Farm;
use model::{BuildKey, BuildRecord, BuildRequest, Context, Outcome, WorkspaceKind, WorkspaceUse};

use crate::check::{ended_as, script};

/// Starts a farm with one worker and one workspace, so that the choice is certain.
async fn one_workspace() -> Farm {
    one_workspace_in("none").await
}

/// The same with builds in this sandbox.
async fn one_workspace_in(sandbox: &str) -> Farm {
    let builder = Farm::builder().without("gateway").workspaces(1);
    builder.env("FOREBAY_BUILD_SANDBOX", sandbox).start().await
}

/// Creates a shell script that uses the workspace of a similar build, and leaves its own.
fn warm(text: &str) -> BuildRequest {
    BuildRequest { workspace: Some(WorkspaceUse::Warm), ..script(text) }
}

/// Creates a build that uses a warm workspace with this content.
fn warm_in(context: &Context, command: &[&str]) -> BuildRequest {
    let command = command.iter().map(|word| (*word).to_owned()).collect();
    BuildRequest { context: context.clone(), command, ..warm("") }
}

fn kind_of(record: &BuildRecord) -> Option<WorkspaceKind> {
    record.invocation().unwrap().workspace_kind
}

/// Runs a build, which must succeed; returns how its workspace was chosen.
async fn run(farm: &Farm, request: BuildRequest) -> (Option<WorkspaceKind>, BuildKey) {
    let key = farm.submit("g", request).await;
    let record = ended_as(farm, &key, Outcome::Succeeded).await;
    (kind_of(&record), key)
}
