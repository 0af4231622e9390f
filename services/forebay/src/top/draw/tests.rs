use console::Key;
use model::{
    BuildId, BuildKey, BuildRecord, BuildRequest, BuildResult, BuildView, Millis, Outcome, Priority,
    ReasonCode, RequestLimits, Sequence, TimeLimits,
};

use super::{super::state::Effect, *};

const NOW: Millis = Millis(1_000_000);

fn build(number: u8, priority: Priority, command: &str, submitted: u64) -> BuildRecord {
    let times = TimeLimits { timeout_seconds: 1, queue_timeout_seconds: 1, lease_ttl_seconds: 1 };
    let limits =
        RequestLimits { times, times_max: times, attempts: 1, attempts_max: 1, ..RequestLimits::default() };
    let id: BuildId = format!("{number:08x}-0000-4000-8000-000000000001").parse().unwrap();
    let request = BuildRequest { id: Some(id), command: vec![command.into()], ..BuildRequest::default() };
    let mut accepted =
        request.validate(&"core".parse().unwrap(), None, None, &limits, Millis(submitted)).unwrap();
    accepted.build.priority = priority;
    BuildRecord::enqueued(accepted.build)
}

fn snapshot() -> Snapshot {
    let waiting = [
        build(1, Priority::Batch, "nightly", 940_000),
        build(2, Priority::Interactive, "\u{1b}[31mmake\nall", 990_000),
    ];
    let failed = build(3, Priority::Automated, "make check", 900_000);
    let result = BuildResult::without_run(Outcome::Expired, ReasonCode::LeaseExpired, "too late".to_owned());
    let lost = BuildResult { outcome: Outcome::Lost, ..result };
    let records = waiting.into_iter().chain([failed.finished(lost, Millis(950_000))]);
    let builds = records.map(|record| BuildView::new(Sequence(7), record)).collect();
    Snapshot { at_ms: NOW, builds, ..Snapshot::default() }
}

/// The lines of a terminal of this size, without their ends, when the screen was drawn over another one.
fn lines(
    width: u16,
    height: u16,
    screen: &Screen,
    snapshot: Option<&Snapshot>,
    status: &Status,
) -> Vec<String> {
    let mut terminal = vt100::Parser::new(height, width, 0);
    let former = vec!["#".repeat(width.into()); height.into()];
    let drawn = draw((width.into(), height.into()), screen, snapshot, status);
    for lines in [former, drawn] {
        terminal.process(frame(&lines).as_bytes());
    }
    terminal.screen().rows(0, width).map(|row| row.trim_end().to_owned()).collect()
}

fn status() -> Status {
    Status { farm: "nats://farm:4222".to_owned(), ..Status::default() }
}

#[test]
fn the_overview_shows_the_worst_first() {
    let shown = lines(80, 24, &Screen::new(View::Overview), Some(&snapshot()), &status());
    let expected = [
        "running 0  waiting 2  workspaces 0/0  actions 0/0  nats://farm:4222",
        " 1 overview   2 builds   3 workers   4 executors   5 queues   6 quota",
        "ID             STATUS    GROUP  PRIORITY     AGE     TIME     COMMAND",
        "00000003-0000  lost      core   automated    1m 40s  0.000 s  'make check'",
        "00000001-0000  ENQUEUED  core   batch        1m      1m       nightly",
        "00000002-0000  ENQUEUED  core   interactive  10s     10.0 s   '\\u{1b}[31mmake\\na",
    ];
    assert_eq!(shown[..6], expected, "{shown:#?}");
    assert_eq!(shown[23], "?: help  Enter: detail  /: filter  s: sort  c: cancel  q: quit");
}

#[test]
fn it_fits_small_and_large_terminals() {
    for (width, height) in [(40, 10), (80, 24), (200, 60), (1, 1), (10, 3)] {
        for view in View::ALL {
            let shown = lines(width, height, &Screen::new(view), Some(&snapshot()), &status());
            assert_eq!(shown.len(), usize::from(height));
        }
    }
    let shown = lines(200, 60, &Screen::new(View::Queues), Some(&snapshot()), &status());
    assert_eq!(
        shown[3..5],
        ["core   interactive  1        10s", "core   batch        1        1m"],
        "{shown:#?}"
    );
}

#[test]
fn empty_views_say_what_to_do() {
    let empty = Snapshot { at_ms: NOW, ..Snapshot::default() };
    let says = |view| lines(100, 10, &Screen::new(view), Some(&empty), &status())[2].clone();
    assert!(says(View::Workers).contains("forebay serve worker"));
    assert!(says(View::Executors).contains("forebay serve executor"));
    assert!(says(View::Builds).contains("forebay submit"));
    assert!(says(View::Quota).contains("forebay quota set"));
}

#[test]
fn a_farm_that_does_not_answer_leaves_the_last_state_and_its_age() {
    let gone = Status { stale: Some(("no answer from the enqueuer".to_owned(), 12)), ..status() };
    let shown = lines(80, 24, &Screen::new(View::Overview), Some(&snapshot()), &gone);
    assert!(
        shown[3].contains("make check") && shown[23] == "12 s old: no answer from the enqueuer",
        "{shown:#?}"
    );
    let shown = lines(80, 24, &Screen::new(View::Overview), None, &gone);
    assert_eq!(shown[2], "the farm does not answer");
}

#[test]
fn a_build_is_shown_in_detail_and_the_question_before_a_cancel() {
    let snapshot = snapshot();
    let mut screen = Screen::new(View::Builds);
    let shown = screen.arrange(table(screen.view, &snapshot));
    assert_eq!(screen.key(&Key::Enter, &shown, 20), Effect::Read);
    let text = lines(100, 30, &screen, Some(&snapshot), &status());
    let key: BuildKey = snapshot.builds[0].record.build.key();
    assert!(text[2].contains(&key.to_string()), "{text:#?}");
    screen.key(&Key::Escape, &shown, 20);
    screen.key(&Key::Char('c'), &shown, 20);
    let text = lines(100, 30, &screen, Some(&snapshot), &status());
    assert_eq!(text[29], format!("cancel build {key}? y: yes, any other key: no"));
}

#[test]
fn every_cell_of_the_former_screen_is_overwritten() {
    let mut wide = snapshot();
    wide.builds[0].record.build.command = vec!["\u{4f60}\u{597d}".repeat(40)];
    for width in [20, 79, 80, 81] {
        for view in View::ALL {
            let shown = lines(width, 12, &Screen::new(view), Some(&wide), &status());
            assert!(shown.iter().all(|line| !line.contains('#')), "{width}: {shown:#?}");
        }
    }
}

#[test]
fn the_selected_row_is_on_the_screen() {
    let records =
        (1..=30).map(|number| build(number, Priority::Batch, &format!("command-{number}"), 900_000));
    let builds = records.map(|record| BuildView::new(Sequence(7), record)).collect();
    let snapshot = Snapshot { at_ms: NOW, builds, ..Snapshot::default() };
    let mut screen = Screen::new(View::Builds);
    let shown = screen.arrange(table(screen.view, &snapshot));
    let rows = |screen: &Screen| lines(100, 9, screen, Some(&snapshot), &status())[3..8].to_vec();
    assert!(rows(&screen)[0].ends_with("command-1") && rows(&screen)[4].ends_with("command-5"));
    screen.key(&Key::End, &shown, page((100, 9)));
    assert!(rows(&screen)[0].ends_with("command-26") && rows(&screen)[4].ends_with("command-30"));
    screen.key(&Key::PageUp, &shown, page((100, 9)));
    assert!(rows(&screen)[4].ends_with("command-25"), "{:#?}", rows(&screen));
}

#[test]
fn the_selected_row_is_reversed_to_its_end_and_colours_can_be_off() {
    let drawn = |colours| {
        let status = Status { colours, ..status() };
        let mut terminal = vt100::Parser::new(12, 90, 0);
        let lines = draw((90, 12), &Screen::new(View::Overview), Some(&snapshot()), &status);
        terminal.process(frame(&lines).as_bytes());
        terminal
    };
    let (with, without) = (drawn(true), drawn(false));
    let cell = |terminal: &vt100::Parser, row, column| terminal.screen().cell(row, column).cloned().unwrap();
    for terminal in [&with, &without] {
        assert!((0..90).all(|column| cell(terminal, 3, column).inverse()));
        assert!((0..90).all(|column| !cell(terminal, 4, column).inverse()));
        assert!(cell(terminal, 0, 0).bold() && cell(terminal, 2, 0).bold());
    }
    assert_eq!(cell(&with, 3, 15).fgcolor(), vt100::Color::Idx(1), "lost is red");
    assert_eq!(cell(&without, 3, 15).fgcolor(), vt100::Color::Default);
}
