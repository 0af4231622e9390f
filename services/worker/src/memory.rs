//! Shuts down tool servers that idle workspaces keep, when memory runs short (section 4.4 of the paper): the least
//! recently used first, one at a time. It also shuts down those that no build has used for long, because they may
//! consume processor time for nothing. It checks only while a workspace has tool servers.

use std::{path::Path, sync::Arc, time::Duration};

use sensors::{memory_states, scarcest};
use service::ServiceError;
use tracing::{debug, info};

use crate::shared::Shared;

/// Mount point of the kernel's process information.
const PROC: &str = "/proc";
/// Time between two checks.
const PERIOD: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(100);

/// Watches until the worker ends.
pub(crate) async fn serve(shared: Arc<Shared>) -> Result<(), ServiceError> {
    let most = f64::from(shared.settings.tool_memory_percent) / 100.0;
    loop {
        shared.workspaces.tools.notified().await;
        while let Some((since, oldest)) = shared.workspaces.with_tools().first() {
            let (used, age) = (used_share(), since.elapsed());
            let Some(why) = why(used, most, age, shared.settings.tool_age) else {
                tokio::time::sleep(PERIOD).await;
                continue;
            };
            info!(workspace = oldest, used, most, ?age, why, "shutting down an idle tool server");
            if shared.workspaces.shut_down(*oldest, why).await.is_err() {
                debug!(workspace = oldest, "the tool server is in use again or already ending");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Why to shut down the least recently used tool server, last used `age` ago; `None` to keep it.
fn why(used: f64, most: f64, age: Duration, age_max: Option<Duration>) -> Option<&'static str> {
    if used > most {
        Some("memory")
    } else if age_max.is_some_and(|most| age >= most) {
        Some("age")
    } else {
        None
    }
}

/// The share of memory in use, of the machine or of a control group, whichever is larger.
fn used_share() -> f64 {
    scarcest(memory_states(Path::new(PROC))).map_or(0.0, |state| 1.0 - state.left_share())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_ends_a_tool_server_and_age_where_a_setting_says_so() {
        let (hour, most) = (Duration::from_secs(3600), Some(Duration::from_secs(7200)));
        assert_eq!(why(0.8, 0.8, hour, most), None);
        assert_eq!(why(0.9, 0.8, Duration::ZERO, most), Some("memory"));
        assert_eq!(why(0.8, 0.8, 2 * hour, most), Some("age"));
        assert_eq!(why(0.8, 0.8, 999 * hour, None), None);
    }

    #[test]
    fn this_machine_can_be_read() {
        let share = used_share();
        assert!(share > 0.0 && share < 1.1, "{share}");
    }
}
