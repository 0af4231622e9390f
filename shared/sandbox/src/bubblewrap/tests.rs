//! Tests of the command lines.

use std::fs;

use super::*;

#[test]
fn what_is_missing_is_named() {
    let bubblewrap = Bubblewrap { program: "no-such-bwrap".into(), ..Bubblewrap::default() };
    let error = bubblewrap.find().unwrap_err().to_string();
    assert!(error.contains("no-such-bwrap") && error.contains("install"), "{error}");
}

#[test]
fn complaints_get_an_advice() {
    assert!(advice("bwrap: setting up uid map: Permission denied").contains("user namespaces"));
    assert!(advice("bwrap: Can't mount proc on /newroot/proc").contains("/proc unmasked"));
    assert!(advice("bwrap: Unknown option --size").contains("0.8"));
}

#[test]
fn the_data_folder_is_hidden_where_it_would_show() {
    let hidden = vec!["/usr/lib".into(), "/home".into()];
    let bubblewrap = Bubblewrap { program: "/bin/true".into(), hidden, ..Bubblewrap::default() };
    let call = bubblewrap.kept(Path::new("/work"), SlotNetwork::Own).unwrap();
    let at = |text: &str| call.iter().position(|argument| argument == text);
    assert!(at("/usr/lib") > at("/usr") && at("/home").is_none(), "{call:?}");
}

#[test]
fn what_is_shown_below_a_private_folder_is_mounted_after_it() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let usual = Bubblewrap { program: "/bin/true".into(), ..Bubblewrap::default() };
    let bubblewrap = usual.showing([folder.path().to_owned(), "/tmp".into()]).hiding([data.clone()]);
    for call in [
        bubblewrap.kept(Path::new("/work"), SlotNetwork::Own).unwrap(),
        bubblewrap.alone(Alone::in_root(Path::new("/work"))).unwrap(),
    ] {
        let at = |path: &Path| call.iter().rposition(|argument| argument == path).unwrap();
        let at_tmpfs =
            |path: &Path| call.windows(2).position(|pair| pair[0] == "--tmpfs" && pair[1] == path).unwrap();
        assert!(at_tmpfs(Path::new("/tmp")) < at(folder.path()), "{call:?}");
        assert!(at_tmpfs(&data) > at(folder.path()), "{call:?}");
    }
}

#[test]
fn room_is_the_least_that_is_allowed_and_what_bubblewrap_takes() {
    let usual = Bubblewrap { program: "/bin/true".into(), ..Bubblewrap::default() };
    let size = |most| {
        let call = usual.with_room(most).alone(Alone::in_root(Path::new("/work"))).unwrap();
        let at = call.iter().position(|argument| argument == "--size")?;
        call.get(at + 1)?.to_str()?.parse::<u64>().ok()
    };
    assert_eq!([size([None, None]), size([Some(9), Some(7)])], [None, Some(7)]);
    assert_eq!([size([Some(0), None]), size([None, Some(u64::MAX)])], [Some(1), Some((1 << 63) - 1)]);
}
