use super::*;

fn rules(text: &str) -> InstanceRules {
    text.parse().unwrap()
}

#[test]
fn by_default_none_main_and_what_is_below_it_are_known() {
    let rules = rules(InstanceRules::DEFAULT);
    for name in ["", "main", "main/a", "main/a/b/c"] {
        assert_eq!(rules.admit(name, None, 3).unwrap().group.as_str(), "default", "{name:?}");
    }
    for name in ["other", "mainx", "main/", "Main", "x/main"] {
        let text = rules.admit(name, None, 0).unwrap_err().to_string();
        assert!(text.contains("\"\" (none), main, main/*") && text.contains(&format!("{name:?}")), "{text}");
    }
}

#[test]
fn the_first_rule_that_matches_holds() {
    let rules = rules("ci/nightly=night ci/*=ci *=others");
    let group = |name| rules.admit(name, None, 0).unwrap().group.to_string();
    assert_eq!(
        [group("ci/nightly"), group("ci/x"), group("ci"), group("")],
        ["night", "ci", "others", "others"]
    );
}

#[test]
fn a_client_may_ask_for_the_groups_of_its_rule() {
    let rules = rules("a=one,two b=one,* c=one");
    let ask = |name, group| rules.admit(name, Some(group), 0).map(|admitted| admitted.group.to_string());
    assert_eq!(ask("a", "two").unwrap(), "two");
    assert_eq!(ask("b", "whatever").unwrap(), "whatever");
    assert_eq!(ask("c", "one").unwrap(), "one");
    let text = ask("a", "three").unwrap_err().to_string();
    assert_eq!(text, "instance name \"a\" may not use group \"three\"; allowed: one, two");
    assert!(ask("b", "no such.group").is_err());
}

#[test]
fn a_priority_stays_inside_the_band() {
    let rules = rules("a=g;priority=-5..10 b=g;readonly");
    let got = |name, asked| rules.admit(name, None, asked).unwrap().priority;
    assert_eq!([got("a", -100), got("a", 0), got("a", 11)], [-5, 0, 10]);
    assert_eq!(got("b", i32::MIN), i32::MIN);
    assert!(!rules.rule("b").unwrap().writable && rules.rule("a").unwrap().writable);
}

#[test]
fn a_name_can_stand_for_a_pool() {
    let rules = rules("bst=g;pool=buildstream *=g");
    let pool = |name| rules.admit(name, None, 0).unwrap().pool.map(|pool| pool.to_string());
    assert_eq!((pool("bst").as_deref(), pool("other")), (Some("buildstream"), None));
    assert!("bst=g;pool=a.b".parse::<InstanceRules>().is_err());
}

#[test]
fn what_is_no_rule_is_named() {
    for bad in ["", "a", "a=", "a=b c", "a=g;priority=5..1", "a=g;x", "a*=g", "/a=g", "/*=g", "a=g,b.c"] {
        assert!(bad.parse::<InstanceRules>().is_err(), "{bad:?}");
    }
    let error = "main=default nonsense".parse::<InstanceRules>().unwrap_err();
    assert_eq!(error.to_string(), "invalid instance rule \"nonsense\": expected PATTERN=GROUP");
}
