//! Messages and records of the bus and requests of the API, in JSON and MessagePack.

use std::collections::BTreeSet;

use bus::{Encoding, FromClient, Message};
use fuzz_tests::{Target, fuzz};
use model::{
    ActionUsage, ActionsRequest, ArchivedBuildRequest, ArchivedBuildsRequest, AuditEvent, AuditRequest,
    BuildRecord, BuildRequest, ConsoleRequest, Control, ExecutionProgress, ExecutionRecord, ExecutorControl,
    ExecutorHeartbeat, FindRequest, GatewayAddress, GrantNotices, Grants, HandOver, Heartbeat,
    HistoryRequest, InvocationRequest, KeepTrace, LiveOutputReply, LiveOutputRequest, OfferReply, Offers,
    Rejection, ReportRequest, RoomReport, TargetsRequest, TestGridRequest, TestsRequest, ToolEvent,
    ToolInvocationsRequest, UsageReport, WaitAgain,
};
use schemars::JsonSchema;
use serde_json::Value;

use crate::{
    choice::{Reader, read, seed},
    samples::samples,
};

/// Reads JSON; what is accepted is the same when it is written and read again.
fn stored<T: Message>(payload: &[u8]) -> String {
    let message = match T::from_json(payload) {
        Err(error) => return telemetry::error_chain(&error),
        Ok(message) => message,
    };
    let written = message.to_json();
    let again = T::from_json(&written).unwrap_or_else(|error| {
        panic!("{}: {}", telemetry::error_chain(&error), String::from_utf8_lossy(&written))
    });
    assert_eq!(again.to_json(), written, "written and read again, it is another message");
    "read".to_owned()
}

/// Reads a request in the encoding that its first byte says, which is what the API does.
fn asked<T: FromClient + Message>(payload: &[u8]) -> String {
    match T::decode(Encoding::of(None, payload), payload) {
        Err(error) => telemetry::error_chain(&error),
        Ok(request) => stored::<T>(&request.to_json()),
    }
}

/// A type as a parser, with samples.
struct Kind {
    reader: Reader,
    samples: Vec<Value>,
}

fn kind<T: JsonSchema>(reader: Reader) -> Kind {
    Kind { reader, samples: samples::<T>() }
}

macro_rules! kinds {
    ($reader:ident: $($message:ty),+ $(,)?) => { vec![$(kind::<$message>($reader::<$message>)),+] };
}

fn records() -> Vec<Kind> {
    kinds!(
        stored: BuildRecord, ExecutionRecord, AuditEvent, ExecutionProgress, Rejection, ToolEvent, UsageReport,
        GatewayAddress, Heartbeat, ExecutorHeartbeat
    )
}

fn messages() -> Vec<Kind> {
    kinds!(
        stored: Control, ExecutorControl, Offers, OfferReply, Grants, GrantNotices, HandOver, RoomReport,
        ActionUsage, LiveOutputRequest, LiveOutputReply, KeepTrace, WaitAgain
    )
}

fn requests() -> Vec<Kind> {
    kinds!(
        asked: BuildRequest, ActionsRequest, ArchivedBuildRequest, ArchivedBuildsRequest, AuditRequest,
        ConsoleRequest, FindRequest, HistoryRequest, InvocationRequest, ReportRequest, TargetsRequest,
        TestGridRequest, TestsRequest, ToolInvocationsRequest
    )
}

/// The names of fields and of variants in samples, quoted, and what JSON is made of.
fn words(kinds: &[Kind]) -> Vec<Vec<u8>> {
    fn collect(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                found.insert(format!("\"{name}\":"));
                collect(value, found);
            }),
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                found.insert(value.to_string());
            }
        }
    }
    let mut found: BTreeSet<String> =
        ["[", "]", "{", "}", ",", "null", "-1", "1e999", "\"\\ud800\"", "\"\\u0000\""]
            .map(str::to_owned)
            .into();
    kinds.iter().flat_map(|kind| &kind.samples).for_each(|sample| collect(sample, &mut found));
    found.into_iter().map(String::into_bytes).collect()
}

fn run(name: &str, kinds: &[Kind], encodings: &[fn(&Value) -> Vec<u8>]) {
    let words = words(kinds);
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let places = kinds.iter().enumerate();
    let samples = places.flat_map(|(place, kind)| kind.samples.iter().map(move |sample| (place, sample)));
    let seeds =
        samples.flat_map(|(place, sample)| encodings.iter().map(move |encode| seed(place, encode(sample))));
    let readers: Vec<Reader> = kinds.iter().map(|kind| kind.reader).collect();
    fuzz(&Target { name, seeds: seeds.collect(), words: &words, check: &|input| read(&readers, input) });
}

fn json(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn message_pack(value: &Value) -> Vec<u8> {
    rmp_serde::to_vec(value).unwrap()
}

#[test]
fn records_are_refused_or_kept_as_they_are() {
    run("records", &records(), &[json]);
}

#[test]
fn messages_between_services_are_refused_or_kept_as_they_are() {
    run("messages", &messages(), &[json]);
}

#[test]
fn requests_are_refused_or_understood_in_both_encodings() {
    run("requests", &requests(), &[json, message_pack]);
}

#[test]
fn most_samples_are_valid() {
    for kinds in [records(), messages(), requests()] {
        let valid = kinds
            .iter()
            .filter(|kind| kind.samples.iter().any(|sample| (kind.reader)(&json(sample)) == "read"));
        let valid = valid.count();
        assert!(valid * 4 >= kinds.len() * 3, "{valid} of {} types", kinds.len());
    }
}
