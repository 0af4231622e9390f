use super::{super::tables::Cell, *};

fn table(names: &[(&str, f64)]) -> Table {
    let row = |(name, number): &(&str, f64)| Row {
        id: (*name).to_owned(),
        cells: vec![
            Cell { text: (*name).to_owned(), tone: None, rank: None },
            Cell { text: number.to_string(), tone: None, rank: Some(*number) },
        ],
        build: Some(format!("g/00000000-0000-4000-8000-00000000000{}", name.len()).parse().unwrap()),
    };
    Table { head: vec!["NAME", "NUMBER"], rows: names.iter().map(row).collect(), empty: "" }
}

fn press(screen: &mut Screen, shown: &Table, key: &Key) -> Effect {
    screen.key(key, shown, 10)
}

fn names(table: &Table) -> Vec<&str> {
    table.rows.iter().map(|row| row.id.as_str()).collect()
}

#[test]
fn numbers_are_sorted_as_numbers_and_texts_as_texts() {
    let all = table(&[("b", 10.0), ("a", 9.0), ("cc", 100.0)]);
    let mut screen = Screen::new(View::Builds);
    assert_eq!(names(&screen.arrange(all.clone())), ["b", "a", "cc"]);
    press(&mut screen, &all, &Key::Char('s'));
    assert_eq!(names(&screen.arrange(all.clone())), ["a", "b", "cc"]);
    press(&mut screen, &all, &Key::Char('s'));
    assert_eq!(names(&screen.arrange(all.clone())), ["a", "b", "cc"]);
    press(&mut screen, &all, &Key::Char('r'));
    assert_eq!(names(&screen.arrange(all.clone())), ["cc", "b", "a"]);
    // After the last column the order of the services comes again.
    press(&mut screen, &all, &Key::Char('r'));
    press(&mut screen, &all, &Key::Char('s'));
    assert_eq!((screen.sort, names(&screen.arrange(all.clone()))), (None, vec!["b", "a", "cc"]));
    press(&mut screen, &all, &Key::Char('<'));
    assert_eq!(screen.sort, Some(1));
}

#[test]
fn a_selected_row_stays_selected_when_others_come_and_go() {
    let before = table(&[("a", 1.0), ("bb", 2.0), ("ccc", 3.0)]);
    let mut screen = Screen::new(View::Builds);
    press(&mut screen, &before, &Key::ArrowDown);
    assert_eq!(screen.place(&before), Some(1));
    let after = table(&[("dddd", 1.0), ("a", 1.0), ("ccc", 3.0), ("bb", 2.0)]);
    assert_eq!(screen.place(&after), Some(3));
    assert_eq!(screen.place(&table(&[("a", 1.0)])), Some(0));
    assert_eq!(screen.place(&table(&[])), None);
    press(&mut screen, &after, &Key::PageDown);
    assert_eq!(screen.place(&after), Some(3));
    press(&mut screen, &after, &Key::Char('g'));
    assert_eq!(screen.place(&after), Some(0));
}

#[test]
fn a_filter_shows_matching_rows_and_escape_shows_all() {
    let all = table(&[("Alpha", 1.0), ("beta", 2.0)]);
    let mut screen = Screen::new(View::Builds);
    for key in "/alq".chars() {
        assert_eq!(press(&mut screen, &all, &Key::Char(key)), Effect::None, "letters are text now");
    }
    press(&mut screen, &all, &Key::Backspace);
    press(&mut screen, &all, &Key::Enter);
    assert_eq!((names(&screen.arrange(all.clone())), &screen.mode), (vec!["Alpha"], &Mode::Table));
    press(&mut screen, &all, &Key::Escape);
    assert_eq!(names(&screen.arrange(all.clone())), ["Alpha", "beta"]);
}

#[test]
fn a_build_is_cancelled_only_after_yes() {
    let all = table(&[("a", 1.0), ("bb", 2.0)]);
    let mut screen = Screen::new(View::Builds);
    let keys = [Key::Char('n'), Key::Enter, Key::Escape, Key::Char('c'), Key::Char('q')];
    for key in keys {
        press(&mut screen, &all, &Key::Char('c'));
        assert!(matches!(screen.mode, Mode::Confirm { .. }));
        assert_eq!(press(&mut screen, &all, &key), Effect::None, "{key:?}");
        assert_eq!(screen.mode, Mode::Table);
    }
    press(&mut screen, &all, &Key::ArrowDown);
    press(&mut screen, &all, &Key::Char('c'));
    let effect = press(&mut screen, &all, &Key::Char('y'));
    assert_eq!(Effect::Cancel(all.rows[1].build.clone().unwrap()), effect);
}

#[test]
fn a_build_and_a_view_have_the_address_of_a_page() {
    let all = table(&[("a", 1.0)]);
    let key = all.rows[0].build.clone().unwrap();
    let address = |view, table: &Table| press(&mut Screen::new(view), table, &Key::Char('o'));
    assert_eq!(address(View::Builds, &all), Effect::Address(format!("/builds/{key}")));
    assert_eq!(address(View::Quota, &table(&[])), Effect::Address("/quota".to_owned()));
}

#[test]
fn every_view_is_one_key_away() {
    let none = table(&[]);
    let mut screen = Screen::new(View::Overview);
    for (number, view) in ('1'..).zip(View::ALL) {
        press(&mut screen, &none, &Key::Char(number));
        assert_eq!(screen.view, view);
    }
    press(&mut screen, &none, &Key::Tab);
    assert_eq!(screen.view, View::Overview);
    press(&mut screen, &none, &Key::BackTab);
    assert_eq!(screen.view, View::Quota);
    // Without a row there is nothing to show in detail or to cancel.
    assert_eq!((press(&mut screen, &none, &Key::Enter), &screen.mode), (Effect::None, &Mode::Table));
    let effect = press(&mut screen, &none, &Key::Char('c'));
    assert_eq!((effect, &screen.mode), (Effect::Message("select a build to cancel"), &Mode::Table));
    assert_eq!(press(&mut screen, &none, &Key::Char('q')), Effect::Quit);
}

#[test]
fn control_c_quits_from_everywhere() {
    let all = table(&[("a", 1.0)]);
    for key in ['/', '?', 'c', 'p'] {
        let mut screen = Screen::new(View::Builds);
        press(&mut screen, &all, &Key::Char(key));
        assert_eq!(press(&mut screen, &all, &Key::CtrlC), Effect::Quit, "{key}");
    }
}
