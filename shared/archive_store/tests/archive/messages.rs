//! Messages of builds as the bus stores them.

use bus::Stored;
use model::{BuildKey, Millis, Sequence};
use serde_json::{Value, json};

/// A time in 2026, in milliseconds: the first event.
pub(crate) const START_MS: u64 = 1_795_000_000_000;

/// A stream of events that is written message by message.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) messages: Vec<Stored>,
}

/// A build of a test.
#[derive(Clone)]
pub(crate) struct Build {
    pub(crate) key: BuildKey,
    pub(crate) fields: Value,
}

/// The id of build `number`.
pub(crate) fn id(number: u64) -> String {
    format!("0199f3a0-0000-7000-8000-{number:012x}")
}

/// The id of a run.
pub(crate) fn run_id(number: u64, attempt: u64) -> String {
    format!("0199f3a0-0000-7000-9000-{:012x}", number * 16 + attempt)
}

impl Build {
    /// Build `number` of `group`; `changes` replace fields of its record.
    pub(crate) fn new(number: u64, group: &str, changes: &Value) -> Self {
        let mut fields = json!({
            "id": id(number), "group": group, "priority": "interactive", "command": ["make", "test"],
            "timeout_seconds": 60, "queue_timeout_seconds": 600, "lease_ttl_seconds": 15, "max_attempts": 3,
            "submitted_at_ms": START_MS + number * 1000,
            "request_digest": format!("sha256:{}", "0".repeat(64)),
        });
        let (fields_map, changes) = (fields.as_object_mut().unwrap(), changes.as_object().unwrap().clone());
        fields_map.extend(changes);
        let key = BuildKey { group: group.parse().unwrap(), id: id(number).parse().unwrap() };
        Self { key, fields }
    }
}

impl Log {
    fn push(&mut self, key: &BuildKey, kind: &str, payload: Vec<u8>) -> u64 {
        let sequence = self.messages.len() as u64 + 1;
        self.messages.push(Stored {
            subject: format!("forebay.build.event.{}.{}.{kind}", key.group, key.id),
            sequence: Sequence(sequence),
            at: Millis(START_MS + sequence * 10),
            headers: None,
            payload: payload.into(),
        });
        sequence
    }

    fn record(&mut self, build: &Build, attempt: u64, first: Option<u64>, changes: &Value) -> u64 {
        let at = START_MS + self.messages.len() as u64 * 10;
        let mut record = build.fields.clone();
        let fields = record.as_object_mut().unwrap();
        fields.insert("attempt".into(), json!(attempt));
        fields.insert("at_ms".into(), json!(at));
        let mut queue =
            json!({"enqueued_at_ms": build.fields["submitted_at_ms"], "expires_at_ms": at + 600_000});
        if let Some(first) = first {
            queue["first_sequence"] = json!(first);
        }
        fields.insert("queue".into(), queue);
        let mut changes = changes.as_object().unwrap().clone();
        if let Some(retry) = changes.remove("retry") {
            fields["queue"]["retry"] = retry;
        }
        fields.extend(changes);
        self.push(&build.key, "lifecycle", record.to_string().into_bytes())
    }

    /// Writes BUILD_ENQUEUED; returns its position.
    pub(crate) fn enqueued(&mut self, build: &Build) -> u64 {
        self.record(build, 1, None, &json!({"event": "BUILD_ENQUEUED"}))
    }

    fn invocation(build: &Build, number: u64, attempt: u64) -> Value {
        json!({
            "id": run_id(number, attempt), "worker": format!("w{}", number % 3), "workspace": 1, "lease_revision": number,
            "started_at_ms": build.fields["submitted_at_ms"].as_u64().unwrap() + 5, "dispatched_at_us": 7,
            "dispatched_at_sequence": 1,
        })
    }

    pub(crate) fn started(&mut self, build: &Build, number: u64, attempt: u64, first: u64) -> u64 {
        let invocation = Self::invocation(build, number, attempt);
        self.record(
            build,
            attempt,
            Some(first),
            &json!({"event": "INVOCATION_STARTED", "invocation": invocation}),
        )
    }

    /// The worker of an attempt was lost: the build waits again.
    pub(crate) fn lost(&mut self, build: &Build, number: u64, attempt: u64, first: u64) -> u64 {
        let retry = json!({
            "reason": {"code": "lease_expired", "message": "the lease expired"}, "worker": format!("w{}", number % 3),
            "invocation": run_id(number, attempt),
        });
        self.record(build, attempt + 1, Some(first), &json!({"event": "BUILD_ENQUEUED", "retry": retry}))
    }

    pub(crate) fn finished(
        &mut self,
        build: &Build,
        number: u64,
        attempt: u64,
        first: u64,
        outcome: &str,
    ) -> u64 {
        let invocation = Self::invocation(build, number, attempt);
        let digest = format!("sha256:{}", "a".repeat(64));
        let mut result = json!({
            "outcome": outcome, "exit_code": i32::from(outcome != "succeeded"), "wall_seconds": 1.5,
            "outputs": [{"path": "out/a.log", "digest": digest, "size_bytes": 7}],
        });
        if outcome != "succeeded" {
            result["reason"] = json!({"code": "command_failed", "message": "exit code 1"});
        }
        let changes = json!({"event": "INVOCATION_FINISHED", "invocation": invocation, "result": result});
        self.record(build, attempt, Some(first), &changes)
    }

    /// A message that no version of the archive can read.
    pub(crate) fn poison(&mut self, build: &Build) -> u64 {
        self.push(&build.key, "lifecycle", b"{\"id\": \"poison\"".to_vec())
    }

    /// Console output that ends at `offset` + its length.
    pub(crate) fn console(&mut self, build: &Build, attempt: u64, offset: u64, text: &str) -> u64 {
        let offset = offset.to_string();
        let headers = [("Forebay-Stream", "stdout"), ("Forebay-Offset", offset.as_str())];
        self.chunk(build, attempt, &headers, text.as_bytes())
    }

    /// A console message with these headers.
    pub(crate) fn chunk(&mut self, build: &Build, attempt: u64, named: &[(&str, &str)], data: &[u8]) -> u64 {
        let position = self.push(&build.key, "console", data.to_vec());
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Forebay-Attempt", attempt.to_string().as_str());
        for (name, value) in named {
            headers.insert(*name, *value);
        }
        self.messages.last_mut().unwrap().headers = Some(headers);
        position
    }

    pub(crate) fn tool(&mut self, build: &Build, event: &Value) -> u64 {
        self.push(&build.key, "tool", event.to_string().into_bytes())
    }

    /// Build `number` from its request to its end, with a lost attempt every fifth time and failures every third.
    pub(crate) fn whole_build(&mut self, number: u64, group: &str, changes: &Value) -> Build {
        let build = Build::new(number, group, changes);
        let first = self.enqueued(&build);
        self.started(&build, number, 1, first);
        self.tool(&build, &json!({"event": "WORKSPACE_PREPARED", "attempt": 1, "wall_seconds": 0.1}));
        self.console(&build, 1, 0, "hello\n");
        let mut attempt = 1;
        if number.is_multiple_of(5) {
            self.lost(&build, number, 1, first);
            attempt = 2;
            self.started(&build, number, attempt, first);
        }
        let report = json!({"id": "//app:tests", "status": if number.is_multiple_of(3) { "failed" } else { "succeeded" }, "wall_ms": number});
        self.tool(
            &build,
            &json!({"event": "TASKS_ENDED", "attempt": attempt, "ended": 1, "tasks": 1, "reports": [report]}),
        );
        self.console(&build, attempt, 6, "world\n");
        self.finished(
            &build,
            number,
            attempt,
            first,
            if number.is_multiple_of(3) { "failed" } else { "succeeded" },
        );
        build
    }
}
