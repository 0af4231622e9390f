//! Whatever the order of builds in the stream, the sizes of batches and what is delivered again: the content is the same.

use std::collections::BTreeMap;

use archive_store::{Batch, LogStream};
use bus::Stored;
use model::Millis;
use proptest::{
    collection::vec,
    prelude::{Strategy as _, any},
    test_runner::{Config, TestRunner},
};
use serde_json::json;

use crate::{
    databases::Database,
    messages::{Build, Log},
};

/// A build on its way: each step writes its next event.
struct Life {
    build: Build,
    number: u64,
    first: u64,
    attempt: u64,
    step: u8,
}

impl Life {
    fn new(number: u64) -> Self {
        let changes =
            json!({"labels": {"n": number.to_string()}, "submitter": format!("user{}", number % 2)});
        Self { build: Build::new(number, "core", &changes), number, first: 0, attempt: 1, step: 0 }
    }

    /// Writes the next event; `lost` decides whether the attempt ends with its worker.
    fn advance(&mut self, log: &mut Log, lost: bool) {
        let (build, number, attempt, first) = (&self.build, self.number, self.attempt, self.first);
        match self.step {
            0 => self.first = log.enqueued(build),
            1 => drop(log.started(build, number, attempt, first)),
            2 => drop(log.tool(
                build,
                &json!({"event": "WORKSPACE_PREPARED", "attempt": attempt, "wall_seconds": 0.5}),
            )),
            3 => drop(log.console(build, attempt, 0, "some output\n")),
            4 if lost && attempt < 3 => {
                log.lost(build, number, attempt, first);
                self.attempt += 1;
                self.step = 0;
            }
            4 => drop(log.finished(
                build,
                number,
                attempt,
                first,
                if number.is_multiple_of(2) { "failed" } else { "succeeded" },
            )),
            5 if lost => drop(log.poison(build)),
            _ => {}
        }
        self.step += 1;
    }
}

/// The events of five builds, which take turns as `choices` say.
fn log(choices: &[(usize, bool)]) -> Vec<Stored> {
    let (mut log, mut lives) = (Log::default(), (1..=5).map(Life::new).collect::<Vec<_>>());
    for (which, lost) in choices {
        let which = which % lives.len();
        lives[which].advance(&mut log, *lost);
    }
    log.messages
}

/// The content of an archive to which `parts` were delivered, each as a batch.
async fn content(parts: &[&[Stored]]) -> BTreeMap<&'static str, String> {
    let database = Database::sqlite();
    let mut writer = database.store.writer().await.unwrap();
    let mut cursor = writer.cursor(LogStream::Events, Millis(1)).await.unwrap();
    for part in parts {
        let mut batch = Batch::new(LogStream::Events, cursor.base);
        part.iter().for_each(|stored| batch.add(stored));
        cursor = writer.commit(&batch, cursor).await.unwrap();
    }
    database.store.content_hashes().await.unwrap()
}

#[test]
fn batches_and_repeats_change_nothing() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let choices = vec((0..5_usize, any::<bool>()), 1..60);
    let sizes = (choices, 1..20_usize, 0..80_usize, 1..20_usize);
    let config = Config { cases: 40, failure_persistence: None, ..Config::default() };
    let case = sizes.prop_map(|(choices, batch, suffix, again)| (log(&choices), batch, suffix, again));
    TestRunner::new(config)
        .run(&case, |(messages, batch, suffix, again)| {
            let whole: Vec<&[Stored]> = vec![&messages];
            let mut parts: Vec<&[Stored]> = messages.chunks(batch).collect();
            // As if the last answers of the database had been lost.
            parts.extend(messages[messages.len().saturating_sub(suffix)..].chunks(again));
            let (one, other) = runtime.block_on(async { (content(&whole).await, content(&parts).await) });
            proptest::prop_assert_eq!(one, other);
            Ok(())
        })
        .unwrap();
}
