//! Comparisons: two builds, or two actions.

mod actions;
mod builds;
mod tasks;

use maud::{Markup, html};
use telemetry::escaped;

pub(crate) use actions::view as actions;
pub(crate) use builds::view as builds;

/// A value that both sides may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) name: String,
    pub(crate) a: Option<String>,
    pub(crate) b: Option<String>,
}

/// The names that either side has, with the values of both, in the order of the names.
pub(crate) fn pairs<'a>(
    a: impl IntoIterator<Item = (&'a str, &'a str)>,
    b: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<Pair> {
    let mut all: std::collections::BTreeMap<&str, (Option<&str>, Option<&str>)> =
        std::collections::BTreeMap::new();
    for (name, value) in a {
        all.entry(name).or_default().0 = Some(value);
    }
    for (name, value) in b {
        all.entry(name).or_default().1 = Some(value);
    }
    let owned = |text: Option<&str>| text.map(ToOwned::to_owned);
    all.into_iter().map(|(name, (a, b))| Pair { name: name.to_owned(), a: owned(a), b: owned(b) }).collect()
}

/// Sections with what differs, and a sentence about the others.
pub(crate) fn sections(all: &[(&str, Vec<Pair>)]) -> Markup {
    let differs = |pairs: &[Pair]| pairs.iter().any(|pair| pair.a != pair.b);
    let names = |wanted: &dyn Fn(&[Pair]) -> bool| -> Vec<String> {
        all.iter().filter(|(_, pairs)| wanted(pairs)).map(|(title, _)| title.to_lowercase()).collect()
    };
    let equal = names(&|pairs| !pairs.is_empty() && !differs(pairs));
    let absent = names(&|pairs| pairs.is_empty());
    html! {
        @for (title, pairs) in all.iter().filter(|(_, pairs)| differs(pairs)) { (section(title, pairs)) }
        @if !equal.is_empty() { p.good { "✓ Equal: " (equal.join(", ")) "." } }
        @if !absent.is_empty() { p { "Neither has: " (absent.join(", ")) "." } }
    }
}

fn section(title: &str, all: &[Pair]) -> Markup {
    let differ: Vec<&Pair> = all.iter().filter(|pair| pair.a != pair.b).collect();
    html! {
        h2 { (title) }
        p { (differ.len()) " of " (all.len()) " differ." }
        div.wide tabindex="0" role="region" aria-label=(title) {
            table.compare {
                thead { tr { th scope="col" { "Part" } th scope="col" { "A" } th scope="col" { "B" } } }
                tbody {
                    @for pair in differ.iter().take(500) {
                        tr {
                            th scope="row" { (escaped(&pair.name)) }
                            td { (value(pair.a.as_deref(), pair.b.as_deref())) }
                            td { (value(pair.b.as_deref(), pair.a.as_deref())) }
                        }
                    }
                }
            }
        }
        @if differ.len() > 500 { p { (differ.len() - 500) " more" } }
    }
}

/// Number of equal characters that are shown before and after a difference.
const AROUND: usize = 40;

/// A value, with a mark where it differs from the other one. Most of what is equal in long values is left out.
fn value(text: Option<&str>, other: Option<&str>) -> Markup {
    let Some(text) = text else { return html! { span.idle { "absent" } } };
    let Some(other) = other else { return html! { code { (escaped(text)) } } };
    let (mine, others): (Vec<char>, Vec<char>) = (text.chars().collect(), other.chars().collect());
    let start = mine.iter().zip(&others).take_while(|(a, b)| a == b).count();
    let rest = mine.len().min(others.len()) - start;
    let end = mine.iter().rev().zip(others.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let part = |from: usize, to: usize| -> String {
        escaped(&mine.get(from..to).unwrap_or_default().iter().collect::<String>())
    };
    let (first, last) = (start.saturating_sub(AROUND), (mine.len() - end + AROUND).min(mine.len()));
    html! {
        code {
            @if first > 0 { "…" }
            (part(first, start)) mark { (part(start, mine.len() - end)) } (part(mine.len() - end, last))
            @if last < mine.len() { "…" }
        }
    }
}

/// The words of two command lines by position, after an equal beginning and before an equal end.
pub(crate) fn words(a: &[String], b: &[String]) -> Vec<Pair> {
    let start = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a_rest, b_rest) = (a.get(start..).unwrap_or_default(), b.get(start..).unwrap_or_default());
    let end = a_rest.iter().rev().zip(b_rest.iter().rev()).take_while(|(a, b)| a == b).count();
    let cut = |rest: &[String]| rest.get(..rest.len() - end).unwrap_or_default().to_vec();
    let (a_rest, b_rest) = (cut(a_rest), cut(b_rest));
    let pair = |at: usize| Pair {
        name: format!("word {}", start + at + 1),
        a: a_rest.get(at).cloned(),
        b: b_rest.get(at).cloned(),
    };
    let same = |text: &String| Pair { name: text.clone(), a: Some(text.clone()), b: Some(text.clone()) };
    let equal = a.iter().take(start).chain(a.iter().skip(a.len() - end)).map(same);
    (0..a_rest.len().max(b_rest.len())).map(pair).chain(equal).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{pairs, value, words};

    proptest! {
        #[test]
        fn equal_lines_have_no_difference_and_others_have_one(a in prop::collection::vec("[ab]", 0..6), b in prop::collection::vec("[ab]", 0..6)) {
            let differs = words(&a, &b).iter().any(|pair| pair.a != pair.b);
            prop_assert_eq!(differs, a != b);
        }
    }

    #[test]
    fn a_difference_is_marked_and_long_equal_parts_are_left_out() {
        let shown = |a: &str, b: &str| value(Some(a), Some(b)).into_string();
        assert_eq!(shown("exit 0", "exit 2"), "<code>exit <mark>0</mark></code>");
        assert_eq!(shown("aa", "aaa"), "<code>aa<mark></mark></code>");
        assert_eq!(shown("aaa", "aa"), "<code>aa<mark>a</mark></code>");
        let long = "x".repeat(100);
        let marked = shown(&format!("{long}é{long}"), &format!("{long}e{long}"));
        let around = "x".repeat(40);
        assert_eq!(marked, format!("<code>…{around}<mark>é</mark>{around}…</code>"));
        assert!(shown("<b>", "<i>").contains("&lt;<mark>b</mark>&gt;"));
    }

    #[test]
    fn one_more_word_is_the_only_difference() {
        let line = |text: &str| text.split(' ').map(ToOwned::to_owned).collect::<Vec<_>>();
        let found = words(&line("cc -O2 a.c -o a"), &line("cc -O2 -g a.c -o a"));
        let differ: Vec<_> = found.iter().filter(|pair| pair.a != pair.b).collect();
        assert_eq!(differ.len(), 1);
        assert_eq!((differ[0].name.as_str(), differ[0].b.as_deref()), ("word 3", Some("-g")));
    }

    #[test]
    fn names_of_either_side_are_paired() {
        let found = pairs([("A", "1"), ("B", "2")], [("B", "3"), ("C", "4")]);
        let texts: Vec<_> =
            found.iter().map(|pair| (pair.name.as_str(), pair.a.as_deref(), pair.b.as_deref())).collect();
        assert_eq!(texts, [("A", Some("1"), None), ("B", Some("2"), Some("3")), ("C", None, Some("4"))]);
    }
}
