use super::*;

fn kind(name: &str) -> ExecutorType {
    name.parse().unwrap()
}

/// Adds `builds` builds of a rule, of which `macs` used Macs.
fn teach(lessons: &mut TrainingData, rule: &str, builds: u64, macs: u64) {
    let mac = kind("mac");
    for number in 0..builds {
        let used: &[&ExecutorType] = if number < macs { &[&mac] } else { &[] };
        lessons.learn_rule(rule, used);
    }
}

#[test]
fn only_rules_that_need_more_than_x86_are_told() {
    let mut lessons = TrainingData::default();
    teach(&mut lessons, "swift_binary", 30, 30);
    teach(&mut lessons, "cc_binary", 1_000, 0);
    teach(&mut lessons, "young", 19, 19);
    teach(&mut lessons, "exception", 1_000, 25);
    teach(&mut lessons, &"long".repeat(65), 30, 30);
    teach(&mut lessons, "quo\"ted", 30, 30);
    let wanted = [("swift_binary".to_owned(), BTreeSet::from([kind("mac")]))];
    assert_eq!(lessons.types_by_rule(), wanted.into());
}

#[test]
fn rules_are_bounded() {
    let mut lessons = TrainingData::default();
    teach(&mut lessons, "z_most", 40, 40);
    for number in 0..RULES_PUBLISHED_MAX + 10 {
        teach(&mut lessons, &format!("rule{number:05}"), 20, 20);
    }
    let told = lessons.types_by_rule();
    assert_eq!(told.len(), RULES_PUBLISHED_MAX);
    assert!(told.contains_key("z_most"), "the rules with the most builds are included");
    for number in 0..RULES_MAX {
        lessons.learn_rule(&format!("made_up{number}"), &[]);
    }
    assert_eq!(lessons.rules.len(), RULES_MAX);
    teach(&mut lessons, "z_most", 1, 1);
    assert_eq!(lessons.rules.get("z_most").map(|used| used.builds), Some(41), "known rules still count");
}

#[test]
fn of_too_many_builds_the_last_ones_teach() {
    let of = |ended: &[(u64, u64)]| TrainingData {
        ended: ended.iter().copied().collect(),
        ..TrainingData::default()
    };
    let hours = |hours: u64| Some(Millis(hours * HOUR_MS));
    assert_eq!(of(&[]).start_within_limit(), None);
    assert_eq!(of(&[(5, BUILDS_MAX / 2), (6, BUILDS_MAX / 2)]).start_within_limit(), None);
    assert_eq!(of(&[(5, 1), (6, BUILDS_MAX / 2), (9, BUILDS_MAX / 2)]).start_within_limit(), hours(6));
    assert_eq!(of(&[(5, 1), (9, BUILDS_MAX + 1)]).start_within_limit(), hours(9));
}

#[test]
fn rules_that_the_tool_reported_teach_and_else_those_that_are_known() {
    let call = ToolCall { rules: ["known".to_owned()].into(), ..ToolCall::default() };
    let facts = |rules: &[&str]| {
        let rules = rules.iter().map(|rule| (*rule).to_owned()).collect();
        let facts = model::TargetFacts { rules, ..model::TargetFacts::default() };
        ToolFacts { targets: [("//a".to_owned(), facts)].into(), ..ToolFacts::default() }
    };
    let rules =
        |facts: Option<&ToolFacts>| -> Vec<String> { rules_of(&call, facts).into_iter().cloned().collect() };
    assert_eq!(rules(Some(&facts(&["cc_test", "swift_binary"]))), ["cc_test", "swift_binary"]);
    assert_eq!(rules(None), ["known"]);
    assert_eq!(rules(Some(&ToolFacts::default())), ["known"]);
}
