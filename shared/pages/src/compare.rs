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

/// A section with what differs; a sentence if nothing does.
pub(crate) fn section(title: &str, all: &[Pair]) -> Markup {
    let differ: Vec<&Pair> = all.iter().filter(|pair| pair.a != pair.b).collect();
    let value = |text: Option<&String>| html! { @match text { Some(text) => code { (escaped(text)) }, None => span.idle { "absent" } } };
    html! {
        h2 { (title) }
        @if differ.is_empty() {
            p { @if all.is_empty() { "Neither has any." } @else { "✓ Equal (" (all.len()) ")." } }
        } @else {
            p { (differ.len()) " of " (all.len()) " differ." }
            div.wide tabindex="0" role="region" aria-label=(title) {
                table.compare {
                    thead { tr { th scope="col" { "Part" } th scope="col" { "A" } th scope="col" { "B" } } }
                    tbody { @for pair in differ.iter().take(500) { tr { th scope="row" { (escaped(&pair.name)) } td { (value(pair.a.as_ref())) } td { (value(pair.b.as_ref())) } } } }
                }
            }
            @if differ.len() > 500 { p { (differ.len() - 500) " more" } }
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

    use super::{pairs, words};

    proptest! {
        #[test]
        fn equal_lines_have_no_difference_and_others_have_one(a in prop::collection::vec("[ab]", 0..6), b in prop::collection::vec("[ab]", 0..6)) {
            let differs = words(&a, &b).iter().any(|pair| pair.a != pair.b);
            prop_assert_eq!(differs, a != b);
        }
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
