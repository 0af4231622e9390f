//! Filters of subjects, as nats-server applies them.

use serde::Deserialize;

/// Subjects that the user may publish to.
#[derive(Debug, Deserialize, Default)]
pub(crate) struct Subjects {
    allow: Option<Vec<String>>,
    deny: Option<Vec<String>>,
}

impl Subjects {
    /// Whether they include `subject`: without a list, everything is allowed.
    pub(crate) fn include(&self, subject: &str) -> bool {
        let has = |list: &Option<Vec<String>>| {
            list.as_ref().is_some_and(|list| list.iter().any(|filter| matches(filter, subject)))
        };
        (self.allow.as_ref().is_none_or(Vec::is_empty) || has(&self.allow)) && !has(&self.deny)
    }
}

/// Whether each subject that `subject` matches also matches `filter`.
pub(crate) fn matches(filter: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    let mut filter = filter.split('.').peekable();
    while let Some(wanted) = filter.next() {
        let Some(token) = tokens.next() else { return false };
        match wanted {
            ">" => return filter.peek().is_none(),
            "*" if token != ">" => {}
            _ if wanted == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subjects(allow: Option<&[&str]>, deny: Option<&[&str]>) -> Subjects {
        let owned = |list: &[&str]| list.iter().map(|&one| one.to_owned()).collect();
        Subjects { allow: allow.map(owned), deny: deny.map(owned) }
    }

    #[test]
    fn what_is_not_listed_is_denied_only_if_there_is_a_list() {
        let read = "$JS.API.DIRECT.GET.FOREBAY_EVENTS";
        for (allow, deny, wanted) in [
            (None, None, true),
            (Some(&["$JS.API.DIRECT.GET.FOREBAY_EVENTS.a.>"][..]), None, false),
            (Some(&["$JS.API.>"][..]), None, true),
            (Some(&["$JS.API.>"][..]), Some(&["$JS.API.DIRECT.>"][..]), false),
            (None, Some(&[">"][..]), false),
        ] {
            assert_eq!(subjects(allow, deny).include(read), wanted, "{allow:?} {deny:?}");
        }
    }

    #[test]
    fn a_filter_matches_what_the_server_matches() {
        for (filter, subject, wanted) in [
            ("a.*.c", "a.b.c", true),
            ("a.*.c", "a.b", false),
            ("a.*", "a.b.c", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            ("a.>", "a.>", true),
            ("a.*", "a.>", false),
            ("a.*", "a.*", true),
            ("a.b", "a.*", false),
            (">", "x", true),
        ] {
            assert_eq!(matches(filter, subject), wanted, "{filter} {subject}");
        }
    }
}
