//! Checks that the clocks of the machines agree. The farm uses the clock of nats-server, so a wrong
//! clock does little harm.

use std::time::Duration;

use client::Client;
use model::Skew;
use telemetry::error_chain;

use super::Finding;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);

/// Compares the clocks of workers, executors and this machine with that of nats-server.
pub(super) async fn run(client: &Client) -> Finding {
    let own = client.bus().clock().skew();
    let mut clocks = vec![("this machine".to_owned(), own)];
    // A failure to list workers is reported by their own check.
    if let Ok(Ok(workers)) = tokio::time::timeout(ANSWER_TIMEOUT, client.workers()).await {
        let of = |it: model::Heartbeat| (format!("{} on {}", it.worker, it.host), it.clock_skew_ms);
        clocks.extend(workers.into_iter().map(|view| of(view.heartbeat)));
    }
    match tokio::time::timeout(ANSWER_TIMEOUT, client.bus().leases().executors()).await {
        Ok(Ok(executors)) => {
            let of =
                |it: model::ExecutorHeartbeat| (format!("{} on {}", it.executor, it.host), it.clock_skew_ms);
            clocks.extend(executors.into_iter().map(of));
        }
        Ok(Err(error)) => return Finding::warn("clocks", error_chain(&error), "see the log of nats-server"),
        Err(_) => return Finding::warn("clocks", "no answer in time", "see the log of nats-server"),
    }
    judge(clocks)
}

fn judge(clocks: Vec<(String, Option<Skew>)>) -> Finding {
    let known: Vec<(String, Skew)> =
        clocks.into_iter().filter_map(|(whose, skew)| Some((whose, skew?))).collect();
    let wrong: Vec<String> = known
        .iter()
        .filter(|(_, skew)| skew.is_notable())
        .map(|(whose, skew)| format!("{whose}: {skew}"))
        .collect();
    if wrong.is_empty() {
        let most = known.iter().map(|(_, skew)| skew.0.unsigned_abs()).max().unwrap_or_default();
        return Finding::ok("clocks", format!("{} clocks within {most} ms of nats-server's", known.len()));
    }
    let advice =
        "synchronise these clocks with NTP; builds are not affected, only logs and file times are wrong";
    Finding::warn("clocks", wrong.join("; "), advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn clocks_that_are_off_are_named() {
        let clock = |whose: &str, skew: Option<i64>| (whose.to_owned(), skew.map(Skew));
        let fine = judge(vec![clock("a on h", Some(3)), clock("b on h", Some(-70)), clock("c on h", None)]);
        assert_eq!((fine.status, &*fine.found), (Status::Ok, "2 clocks within 70 ms of nats-server's"));
        let wrong = judge(vec![clock("a on h", Some(3)), clock("b on g", Some(-5100))]);
        assert_eq!((wrong.status, &*wrong.found), (Status::Warn, "b on g: 5.1 s behind"));
    }
}
