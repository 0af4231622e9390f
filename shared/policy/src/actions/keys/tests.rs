use proptest::prelude::*;

use super::*;

/// An action whose parts can be changed one by one.
#[derive(Debug, Clone, PartialEq)]
struct Parts {
    group: Group,
    instance: String,
    command: BlobDigest,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    platform: Vec<(String, String)>,
    image: Option<BlobDigest>,
    outputs: [Vec<String>; 3],
    target: String,
    mnemonic: String,
}

fn digest(of: &str) -> BlobDigest {
    format!("{}/{}", blake3::hash(of.as_bytes()).to_hex(), of.len()).parse().unwrap()
}

fn compile() -> Parts {
    Parts {
        group: "core".parse().unwrap(),
        instance: "main".into(),
        command: digest("cc -c a.c"),
        arguments: ["/usr/bin/cc", "-c", "a.c"].map(str::to_owned).to_vec(),
        environment: Vec::new(),
        platform: pairs(&[("OSFamily", "linux"), ("Arch", "arm64")]),
        image: None,
        outputs: [vec!["out/a.o".into(), "out/a.d".into()], Vec::new(), Vec::new()],
        target: "//a:a".into(),
        mnemonic: "CppCompile".into(),
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

impl Parts {
    fn keys(&self) -> ActionKeys {
        let [paths, files, directories] = &self.outputs;
        action_keys(&KeyedAction {
            group: &self.group,
            instance: &self.instance,
            command: &self.command,
            arguments: &self.arguments,
            environment: &self.environment,
            platform: &self.platform,
            image: self.image.as_ref(),
            outputs: [paths, files, directories],
            target: &self.target,
            mnemonic: &self.mnemonic,
        })
    }
}

#[test]
fn an_action_without_a_warm_output_is_warm_where_its_image_is() {
    let in_image = |name: &str, image: &str| {
        let outputs = [vec![name.to_owned()], Vec::new(), Vec::new()];
        Parts { image: Some(digest(image)), outputs, target: name.to_owned(), ..compile() }.keys().affinity
    };
    let (one, two) = (in_image("a", "debian"), in_image("b", "debian"));
    assert_eq!((one.len(), one.last()), (compile().keys().affinity.len() + 1, two.last()));
    assert_ne!(one.last(), in_image("a", "alpine").last());
}

/// Which of both kinds of keys of a compilation stay the same under `change`, in their order.
fn kept(change: impl FnOnce(&mut Parts)) -> (Vec<bool>, Vec<bool>) {
    let mut changed = compile();
    change(&mut changed);
    let (before, after) = (compile().keys(), changed.keys());
    let same = |before: &[ActionKey], after: &[ActionKey]| {
        before.iter().map(|key| after.contains(key)).collect::<Vec<_>>()
    };
    (same(&before.history, &after.history), same(&before.affinity, &after.affinity))
}

#[test]
fn a_compilation_has_every_key_each_once() {
    let keys = compile().keys();
    assert_eq!((keys.history.len(), keys.affinity.len()), (3, 2));
    let mut all = [keys.history, keys.affinity].concat();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 5);
}

#[test]
fn flags_change_the_command_alone() {
    assert_eq!(
        kept(|parts| parts.command = digest("cc -O2 -c a.c")),
        (vec![false, true, true], vec![true; 2])
    );
}

#[test]
fn another_target_shares_its_kind() {
    let (history, affinity) = kept(|parts| parts.target = "//b:b".into());
    assert_eq!((history, affinity), (vec![true, false, true], vec![true, false]));
    assert_eq!(kept(|parts| parts.mnemonic = "Link".into()).0, [true, false, false]);
}

#[test]
fn groups_share_nothing_and_instances_and_platforms_no_warmth() {
    assert_eq!(kept(|parts| parts.group = "other".parse().unwrap()), (vec![false; 3], vec![false; 2]));
    assert_eq!(kept(|parts| parts.instance = "other".into()), (vec![true; 3], vec![false; 2]));
    let (history, affinity) = kept(|parts| parts.platform.push(("Pool".into(), "x".into())));
    assert_eq!((history, affinity), (vec![true; 3], vec![false; 2]));
    assert_eq!(kept(|parts| parts.platform.reverse()), (vec![true; 3], vec![true; 2]));
}

#[test]
fn the_first_output_names_it_wherever_it_stands() {
    assert_eq!(kept(|parts| parts.outputs[0].truncate(1)).1, [true, true]);
    assert_eq!(kept(|parts| parts.outputs.swap(0, 2)).1, [true, true]);
    assert_eq!(kept(|parts| parts.outputs[0].reverse()).1, [false, true]);
    assert_eq!(kept(|parts| parts.outputs[0].clear()).1, [false, true]);
}

#[test]
fn what_says_no_mnemonic_is_of_the_kind_of_its_program() {
    let mut parts = Parts { mnemonic: String::new(), target: String::new(), ..compile() };
    let by_path = parts.keys().history;
    parts.arguments = vec!["cc".into()];
    assert_eq!(parts.keys().history, by_path);
    assert_eq!(by_path.len(), 2);
    parts.arguments = vec!["ld".into()];
    assert_ne!(parts.keys().history, by_path);
    parts.arguments.clear();
    assert_eq!(parts.keys().history.len(), 1, "its command is all that is known");
}

#[test]
fn what_has_neither_outputs_nor_target_is_warm_nowhere() {
    let parts = Parts { target: String::new(), outputs: Default::default(), ..compile() };
    assert_eq!(parts.keys().affinity, []);
}

#[test]
fn a_ci_run_goes_by_repository_and_branch_then_by_repository() {
    let run = |environment: &[(&str, &str)]| {
        let environment = pairs(environment);
        Parts { target: String::new(), environment, ..compile() }.keys().affinity
    };
    let main = run(&[("GIT_REPO_URL", "https://x/y"), ("GIT_BRANCH", "main")]);
    let dev = run(&[("GIT_BRANCH", "dev"), ("GIT_REPO_URL", "https://x/y")]);
    assert_eq!((main.len(), dev.len()), (2, 2));
    assert_ne!(main[0], dev[0]);
    assert_eq!(main[1], dev[1]);
    assert_eq!(run(&[("GIT_REPO_URL", "https://x/y"), ("GIT_BRANCH", "")]), main[1..]);
    assert_ne!(run(&[("GIT_REPO_URL", "https://x/z")]), main[1..]);
    let github = run(&[("GITHUB_REPOSITORY", "https://x/y"), ("GITHUB_REF_NAME", "main")]);
    assert_eq!(github, main, "whatever system it is");
    assert_eq!(run(&[("GIT_BRANCH", "main")]).len(), 1, "no repository: its output");
}

#[test]
fn an_action_of_a_build_inside_a_ci_run_goes_by_its_output() {
    let leaked = pairs(&[("GITHUB_REPOSITORY", "x/y"), ("GITHUB_REF_NAME", "main")]);
    assert_eq!(kept(|parts| parts.environment = leaked).1, [true, true]);
}

proptest! {
    #[test]
    fn texts_do_not_run_into_each_other(target in "[a-c]{0,3}", mnemonic in "[a-c]{0,3}", other in "[a-c]{0,3}") {
        let of = |target: &str, mnemonic: &str| {
            Parts { target: target.into(), mnemonic: mnemonic.into(), arguments: Vec::new(), ..compile() }
        };
        let joined = format!("{target}{other}");
        let one = of(&joined, &mnemonic);
        let two = of(&target, &format!("{other}{mnemonic}"));
        prop_assert_eq!(one.keys().history == two.keys().history, one == two);
    }
}
