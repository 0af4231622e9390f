#![expect(clippy::float_cmp, reason = "a share of small numbers has one value")]

use proptest::prelude::*;

use super::*;

const FLOAT: CompareRule = CompareRule::Float { absolute: 0.01, relative: 0.001 };
const ALL: [CompareRule; 5] = [
    CompareRule::Exact,
    CompareRule::Whitespace,
    FLOAT,
    CompareRule::UnorderedLines,
    CompareRule::UnorderedTokens,
];

fn score(rule: CompareRule, found: &str, expected: &str) -> f64 {
    judge(rule, found.as_bytes(), expected.as_bytes()).score
}

fn difference(rule: CompareRule, found: &str, expected: &str) -> String {
    judge(rule, found.as_bytes(), expected.as_bytes()).difference.unwrap()
}

#[test]
fn each_rule_ignores_what_it_says_and_nothing_else() {
    for (found, expected, same) in [
        ("1 2\n3\n", "1 2\n3\n", [true, true, true, true, true]),
        ("1  2\n3", "1 2\n3\n", [false, true, true, false, true]),
        ("1 2\r\n3  \n\n", "1 2\n3\n", [false, true, true, true, true]),
        ("3\n1 2\n", "1 2\n3\n", [false, false, false, true, true]),
        ("2 1\n3\n", "1 2\n3\n", [false, false, false, false, true]),
        ("1.0005 2\n3\n", "1 2.0\n3\n", [false, false, true, false, false]),
        ("1 2\n", "1 2\n3\n", [false; 5]),
        ("1 2\n3\n3\n", "1 2\n3\n", [false; 5]),
        ("", "", [true; 5]),
        ("", "1", [false; 5]),
    ] {
        for (rule, same) in ALL.into_iter().zip(same) {
            let found = judge(rule, found.as_bytes(), expected.as_bytes());
            assert_eq!(
                (found.score == 1.0, found.difference.is_none()),
                (same, same),
                "{rule:?} {expected:?}"
            );
        }
    }
}

#[test]
fn numbers_are_the_same_within_either_tolerance() {
    for (found, expected, same) in [
        ("0.009", "0", true),
        ("0.011", "0", false),
        ("1000.9", "1000", true),
        ("1001.1", "1000", false),
        ("-1000.9", "-1e3", true),
        ("inf", "inf", true),
        ("1", "inf", false),
        ("-inf", "inf", false),
        ("NaN", "nan", true),
        ("1", "nan", false),
        ("abc", "abc", true),
        ("abc", "abd", false),
        ("1x", "1", false),
    ] {
        assert_eq!(score(FLOAT, found, expected) == 1.0, same, "{found} {expected}");
    }
}

#[test]
fn the_score_is_the_share_that_is_right() {
    assert_eq!(score(CompareRule::Exact, "1 2 3 4", "1 2 3 5"), 0.0);
    assert_eq!(score(CompareRule::Whitespace, "1 2 3 4", "1 2 3 5"), 0.75);
    assert_eq!(score(CompareRule::Whitespace, "1 2", "1 2 3 5"), 0.5);
    assert_eq!(
        score(CompareRule::Whitespace, "1 2 3 5", "1 2"),
        0.5,
        "more output than expected does not help"
    );
    assert_eq!(score(CompareRule::UnorderedTokens, "5 5 1", "1 5 2"), 2.0 / 3.0);
}

#[test]
fn a_difference_says_where_it_is() {
    assert_eq!(difference(CompareRule::Exact, "abc", "abd"), "byte 3 differs");
    let short = "it has 2 bytes, expected 3; the first 2 are the same";
    assert_eq!(difference(CompareRule::Exact, "ab", "abd"), short);
    assert_eq!(difference(CompareRule::Whitespace, "a x", "a b"), r#"word 2 is "x", expected "b""#);
    assert_eq!(difference(CompareRule::Whitespace, "a", "a b"), r#"word 2 is missing, expected "b""#);
    assert_eq!(difference(CompareRule::Whitespace, "a b", "a"), r#"word 2 is "b", expected the end"#);
    assert_eq!(difference(CompareRule::UnorderedLines, "a\nb", "b\nc"), r#"line "c" is missing"#);
    let extra = r#"word "b" is not expected, or not as often"#;
    assert_eq!(difference(CompareRule::UnorderedTokens, "b a b", "b a"), extra);
    let long = difference(CompareRule::Whitespace, &"x".repeat(1000), "y");
    assert!(long.len() < 200 && long.contains('…'), "{long}");
}

fn text() -> impl Strategy<Value = String> {
    "[a-c0-2. \n]{0,40}"
}

proptest! {
    #[test]
    fn a_file_is_the_same_as_itself_by_every_rule(text in text()) {
        for rule in ALL {
            prop_assert_eq!(score(rule, &text, &text), 1.0);
        }
    }

    #[test]
    fn a_full_score_and_no_difference_are_the_same_thing(found in text(), expected in text()) {
        for rule in ALL {
            let judged = judge(rule, found.as_bytes(), expected.as_bytes());
            prop_assert!((0.0..=1.0).contains(&judged.score));
            prop_assert_eq!(judged.score == 1.0, judged.difference.is_none());
        }
    }

    #[test]
    fn a_laxer_rule_never_scores_less(found in text(), expected in text()) {
        let of = |rule| score(rule, &found, &expected);
        prop_assert!(of(CompareRule::Exact) <= of(CompareRule::Whitespace));
        prop_assert!(of(CompareRule::Whitespace) <= of(FLOAT));
        prop_assert!(of(CompareRule::Whitespace) <= of(CompareRule::UnorderedTokens));
        prop_assert!(of(CompareRule::Exact) <= of(CompareRule::UnorderedLines));
    }

    #[test]
    fn any_bytes_can_be_judged(found: Vec<u8>, expected: Vec<u8>) {
        for rule in ALL {
            judge(rule, &found, &expected);
        }
    }
}
