//! Who reads a page: the part of it that differs between readers.

use std::sync::Arc;

use callers::{Caller, Callers, SignIn};
use http_api::{FORM_TOKEN_FIELD, RouteNeed};
use maud::{Markup, html};
use policy::access::Rights;

use crate::OPERATE;

/// Maximum characters of a name that is shown.
const NAME_MAX: usize = 60;

/// The reader of a page. The default is one of whom nothing is known.
#[derive(Default)]
pub(crate) struct Reader {
    /// What they may do, if they are known.
    rights: Option<Arc<Rights>>,
    /// What the forms of the page contain to prove that they are from it.
    pub(crate) form_token: Option<String>,
    /// The name by which a person who signed in is known to itself.
    name: Option<String>,
    /// Whether the caller has no name, and can sign in.
    may_sign_in: bool,
}

impl Reader {
    pub(crate) fn of(caller: &Caller, callers: &Callers) -> Self {
        let is_in_session = caller.is_in_session();
        Self {
            rights: Some(Arc::clone(&caller.rights)),
            form_token: caller.form_token().map(str::to_owned),
            name: is_in_session.then(|| caller.shown_name().to_owned()),
            may_sign_in: caller.name.is_empty() && SignIn::of(callers).is_some(),
        }
    }

    /// Whether they may read pages with this need: all but those of operators, if they are not known.
    pub(crate) fn meets(&self, need: RouteNeed) -> bool {
        self.rights.as_ref().map_or(need != OPERATE, |rights| need.is_met_by(rights))
    }

    /// Says who has signed in, with a button for signing out.
    pub(crate) fn who(&self) -> Markup {
        html! {
            @if let Some(name) = &self.name {
                form.reader method="post" action="/logout" { (name.chars().take(NAME_MAX).collect::<String>()) " " button.small { "Sign out" } }
            } @else if self.may_sign_in {
                a href="/login" { "Sign in" }
            }
        }
    }

    /// The page with the token in each form that changes something. Texts of others contain no tags: they are escaped.
    pub(crate) fn with_form_tokens(&self, page: String) -> String {
        let Some(token) = &self.form_token else { return page };
        let field = html! { input type="hidden" name=(FORM_TOKEN_FIELD) value=(token); }.into_string();
        let mut complete = String::with_capacity(page.len() + 512);
        for (number, part) in page.split("<form").enumerate() {
            if number == 0 {
                complete.push_str(part);
                continue;
            }
            complete.push_str("<form");
            match part.split_once('>') {
                Some((attributes, rest)) if attributes.contains(" method=\"post\"") => {
                    complete.extend([attributes, ">", field.as_str(), rest]);
                }
                Some(_) | None => complete.push_str(part),
            }
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_that_changes_something_has_the_token() {
        let evil = "<form method=\"post\"> \" method=\"post\">";
        let page = html! {
            form method="get" action=(evil) { (evil) }
            form.filter method="post" action=(evil) { button { (evil) } }
            p { (evil) }
            form method="post" action="/b" {}
        };
        let reader = Reader { form_token: Some("t0ken".into()), ..Reader::default() };
        let page = reader.with_form_tokens(page.into_string());
        assert_eq!(page.matches("t0ken").count(), 2, "{page}");
        assert_eq!(
            page.matches("\"><input type=\"hidden\" name=\"form_token\" value=\"t0ken\">").count(),
            2,
            "{page}"
        );
        let (get, _) = page.split_once("</form>").unwrap();
        assert!(!get.contains("t0ken"), "{page}");
        assert_eq!(
            Reader::default().with_form_tokens("<form method=\"post\">".into()),
            "<form method=\"post\">"
        );
    }
}
