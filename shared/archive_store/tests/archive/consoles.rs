//! Console output of builds, on SQLite and on PostgreSQL.

use std::time::Duration;

use archive_store::{Retention, Store};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use model::{
    Attempt, ConsoleContent, ConsoleOf, ConsoleOfBuild, ConsolePiece, ConsoleRequest, Millis, OutputStream,
    Sequence,
};
use serde_json::json;

use crate::{
    databases::Database,
    facts::archive,
    messages::{Log, START_MS, id, run_id},
    retention::retention,
};

on_both! {
    output_is_read_as_it_was_written,
    pages_have_all_output_once_and_are_bounded,
    a_message_that_is_larger_than_a_page_is_read_in_pieces,
    output_is_removed_with_its_build,
    output_of_a_build_that_is_not_archived_is_refused,
}

fn of_build(number: u64, attempt: Option<u32>) -> ConsoleOf {
    let (group, id) = ("core".parse().unwrap(), id(number).parse().unwrap());
    ConsoleOf::Build(ConsoleOfBuild { group, id, attempt: attempt.map(Attempt) })
}

/// All pieces, and the number of pages.
async fn all(store: &Store, of: ConsoleOf) -> (Vec<ConsolePiece>, usize) {
    let (mut found, mut pages, mut after) = (Vec::new(), 0, None);
    loop {
        let reply = store.console(&ConsoleRequest { of: of.clone(), after }).await.unwrap().unwrap();
        let bytes: usize = reply.pieces.iter().map(|piece| output(piece).map_or(0, |data| data.len())).sum();
        assert!(bytes <= 512 << 10, "{bytes}");
        pages += 1;
        found.extend(reply.pieces);
        after = reply.next;
        if after.is_none() {
            return (found, pages);
        }
    }
}

fn output(piece: &ConsolePiece) -> Option<Vec<u8>> {
    match &piece.content {
        ConsoleContent::Output { base64, .. } => Some(STANDARD.decode(base64).unwrap()),
        ConsoleContent::Frame { .. } | ConsoleContent::Dropped { .. } => None,
    }
}

/// Output that hardly gets shorter.
fn noise(bytes: u32) -> Vec<u8> {
    (0..bytes).map(|number| number.wrapping_mul(0x9e37_79b9).to_be_bytes()[1]).collect()
}

async fn output_is_read_as_it_was_written(database: Database) {
    let mut log = Log::default();
    // Its first attempt is lost; each attempt wrote a line.
    let build = log.whole_build(5, "core", &json!({}));
    let blob = format!("{}/9", "a".repeat(64));
    let texts = [b"\xff\x00\n".to_vec(), b"line\n".repeat(1000), noise(60_000), Vec::new()];
    for text in &texts {
        log.chunk(&build, 2, &[("Forebay-Stream", "stderr"), ("Forebay-Offset", "7")], text);
    }
    let frame = [
        ("Forebay-Blob", blob.as_str()),
        ("Forebay-Offset", "9"),
        ("Forebay-Bytes", "80"),
        ("Forebay-Lines", "3"),
    ];
    let position = log.chunk(&build, 2, &frame, b"");
    let gap = [("Forebay-Stream", "stdout"), ("Forebay-Offset", "12"), ("Forebay-Dropped", "40")];
    log.chunk(&build, 2, &gap, b"");
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 3).await;

    let (pieces, _) = all(&database.store, of_build(5, None)).await;
    assert_eq!(pieces.iter().map(|piece| piece.attempt.0).collect::<Vec<_>>(), [1, 2, 2, 2, 2, 2, 2, 2]);
    assert!(pieces.is_sorted_by(|one, next| one.number < next.number));
    assert_eq!(output(&pieces[0]).unwrap(), b"hello\n");
    let (second, _) = all(&database.store, of_build(5, Some(2))).await;
    assert_eq!(second, pieces[1..]);
    let run = ConsoleOf::Invocation(run_id(5, 2).parse().unwrap());
    assert_eq!(all(&database.store, run).await.0, second);
    assert!(second.iter().all(|piece| piece.invocation == Some(run_id(5, 2).parse().unwrap())));
    for (piece, text) in second[1..].iter().zip(&texts) {
        assert_eq!(output(piece).as_ref(), Some(text));
        let lines = text.iter().map(|byte| u64::from(*byte == b'\n')).sum();
        assert_eq!((piece.offset, piece.bytes, piece.lines), (7, text.len() as u64, lines));
    }
    let [.., frame, gap] = second.as_slice() else { panic!("{second:?}") };
    assert_eq!(frame.content, ConsoleContent::Frame { blob: blob.parse().unwrap() });
    assert_eq!((frame.offset, frame.bytes, frame.lines, frame.position), (9, 80, 3, Sequence(position)));
    assert_eq!(gap.content, ConsoleContent::Dropped { stream: OutputStream::Stdout, bytes: 40 });
}

async fn pages_have_all_output_once_and_are_bounded(database: Database) {
    let mut log = Log::default();
    let build = log.whole_build(1, "core", &json!({}));
    let (mut offset, mut written) = (0, b"hello\nworld\n".to_vec());
    // 30 large pieces, then more small ones than a page has.
    for number in 0..1230_u32 {
        let text = noise(if number < 30 { 64 << 10 } else { 3 });
        let at = offset.to_string();
        log.chunk(&build, 1, &[("Forebay-Stream", "stdout"), ("Forebay-Offset", &at)], &text);
        offset += text.len();
        written.extend(text);
    }
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 100).await;
    let (pieces, pages) = all(&database.store, of_build(1, None)).await;
    assert!((6..=8).contains(&pages), "{pages}");
    assert_eq!(pieces.iter().filter_map(output).collect::<Vec<_>>().concat(), written);
}

async fn a_message_that_is_larger_than_a_page_is_read_in_pieces(database: Database) {
    let mut log = Log::default();
    let build = log.whole_build(1, "core", &json!({}));
    let large = noise(1_500_000);
    log.chunk(&build, 1, &[("Forebay-Stream", "stdout"), ("Forebay-Offset", "12")], &large);
    log.console(&build, 1, 1_500_012, "end\n");
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 100).await;
    let (pieces, pages) = all(&database.store, of_build(1, None)).await;
    let written = [b"hello\nworld\n".as_slice(), &large, b"end\n"].concat();
    assert!(pieces.iter().filter_map(output).collect::<Vec<_>>().concat() == written);
    assert!(pages >= 3, "{pages}");
    assert!(pieces.is_sorted_by(|one, next| one.number < next.number));
    let large: Vec<_> = pieces.iter().filter(|piece| piece.offset >= 12).collect();
    assert!(large.windows(2).all(|pair| pair[0].offset + pair[0].bytes == pair[1].offset));
    let lines: u64 = pieces.iter().map(|piece| piece.lines).sum();
    assert_eq!(lines, written.iter().map(|byte| u64::from(*byte == b'\n')).sum::<u64>());
}

async fn output_is_removed_with_its_build(database: Database) {
    let mut log = Log::default();
    log.whole_build(1, "core", &json!({}));
    log.whole_build(20, "core", &json!({}));
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 100).await;
    let retention = Retention { age: Duration::from_secs(10), ..retention(&[]) };
    while writer.sweep(&retention, Millis(START_MS + 21_000)).await.unwrap() {}
    assert_eq!(
        database.store.console(&ConsoleRequest { of: of_build(1, None), after: None }).await.unwrap(),
        None
    );
    assert_eq!(all(&database.store, of_build(20, None)).await.0.len(), 2);
    // What is left is what an archive of the other build has.
    let rest: Vec<_> =
        log.messages.iter().filter(|stored| stored.subject.contains(&id(20))).cloned().collect();
    let other = Database::sqlite();
    archive(&mut other.store.writer().await.unwrap(), &rest, 100).await;
    if database.store.dialect() == other.store.dialect() {
        let pieces = async |store: &Store| store.content_hashes().await.unwrap()["console_pieces"].clone();
        assert_eq!(pieces(&database.store).await, pieces(&other.store).await);
    }
}

async fn output_of_a_build_that_is_not_archived_is_refused(database: Database) {
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &[], 100).await;
    for of in [of_build(1, None), ConsoleOf::Invocation(run_id(1, 1).parse().unwrap())] {
        assert_eq!(database.store.console(&ConsoleRequest { of, after: None }).await.unwrap(), None);
    }
}
