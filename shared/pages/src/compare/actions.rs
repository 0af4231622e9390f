//! Compares two actions: why the result of one was no result of the other.

use http_api::Failure;
use maud::html;
use model::{BlobDigest, Group};
use reapi::execution::Directory;

use super::{Pair, pairs, sections, words};
use crate::{
    action::{self, Content},
    blob,
    layout::short,
    site::{Asked, Site},
    view::View,
};

/// Maximum number of folders of each side that are read.
const FOLDERS_MAX: usize = 2000;
/// Maximum number of entries that are compared, and length of a path in bytes.
const ENTRIES_MAX: usize = 20_000;
const PATH_MAX: usize = 4096;

/// Handles `GET /compare-actions?a=DIGEST&b=DIGEST`: shows what differs.
pub(crate) async fn view(site: Site, asked: Asked) -> Result<View, Failure> {
    let digest = |name: &str| {
        let text =
            asked.query.last(name).ok_or_else(|| Failure::invalid("expected a and b, each as HASH/SIZE"))?;
        blob::digest(text.trim())
    };
    let (a, b) = (Content::read(&site, digest("a")?).await?, Content::read(&site, digest("b")?).await?);
    let group: Option<Group> = asked.query.parsed("group")?;
    let inputs = inputs(&site, &a, &b).await;
    let variables = |it: &Content| -> Vec<(String, String)> {
        it.command.environment_variables.iter().map(|it| (it.name.clone(), it.value.clone())).collect()
    };
    let content = html! {
        h1 { "Compare two actions" }
        @for (name, it) in [("A", &a), ("B", &b)] {
            p { (name) ": " a href=(action::path(it.digest, group.as_ref())) { code { (it.digest) } } " " span.command { (short(&it.command.arguments.join(" "), 100)) } }
        }
        @if a.digest == b.digest {
            p.good { "✓ They are the same action: the result of one is the result of the other." }
        } @else {
            (sections(&[
                ("Command", words(&a.command.arguments, &b.command.arguments)),
                ("Environment", pairs(texts(&variables(&a)), texts(&variables(&b)))),
                ("Platform", pairs(texts(&a.platform()), texts(&b.platform()))),
                ("Inputs", inputs),
                ("Outputs and limits", others(&a, &b)),
            ]))
        }
    };
    Ok(View::fixed("Compare actions", content))
}

fn texts(all: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    all.iter().map(|(name, value)| (name.as_str(), value.as_str()))
}

fn others(a: &Content, b: &Content) -> Vec<Pair> {
    let of = |it: &Content| {
        vec![
            ("outputs".to_owned(), it.outputs().join(" ")),
            ("folder".to_owned(), it.command.working_directory.clone()),
            ("timeout".to_owned(), it.timeout().map(|it| format!("{} s", it.as_secs())).unwrap_or_default()),
            ("may be cached".to_owned(), (!it.action.do_not_cache).to_string()),
            ("salt".to_owned(), format!("{} bytes", it.action.salt.len())),
        ]
    };
    let (a, b) = (of(a), of(b));
    pairs(texts(&a), texts(&b))
}

/// The inputs that differ. Folders that are equal are not read.
async fn inputs(site: &Site, a: &Content, b: &Content) -> Vec<Pair> {
    let (Ok(a), Ok(b)) = (a.root(), b.root()) else { return Vec::new() };
    let (mut found, mut open, mut read) = (Vec::new(), vec![(String::new(), Some(a), Some(b))], 0);
    while let Some((path, a, b)) = open.pop() {
        read += 1;
        if read > FOLDERS_MAX || found.len() > ENTRIES_MAX || path.len() > PATH_MAX {
            found.push(Pair {
                name: format!("{path} and more folders"),
                a: None,
                b: Some("not compared".to_owned()),
            });
            break;
        }
        if a == b {
            found.push(Pair {
                name: format!("{path}/"),
                a: a.map(|it| it.to_string()),
                b: b.map(|it| it.to_string()),
            });
            continue;
        }
        let (of_a, of_b) = (folder(site, a).await, folder(site, b).await);
        let files = |it: &Directory| entries(it);
        found.extend(
            pairs(texts(&files(&of_a)), texts(&files(&of_b)))
                .into_iter()
                .map(|pair| Pair { name: format!("{path}{}", pair.name), ..pair }),
        );
        let folders = |it: &Directory| -> Vec<(String, String)> {
            it.directories.iter().map(|it| (it.name.clone(), text(it.digest.as_ref()))).collect()
        };
        for pair in pairs(texts(&folders(&of_a)), texts(&folders(&of_b))) {
            let digest = |text: Option<String>| text.and_then(|text| text.parse::<BlobDigest>().ok());
            open.push((format!("{path}{}/", pair.name), digest(pair.a), digest(pair.b)));
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

async fn folder(site: &Site, digest: Option<BlobDigest>) -> Directory {
    match digest {
        Some(digest) => Content::folder(site, &digest).await.unwrap_or_default(),
        None => Directory::default(),
    }
}

/// Files and links with what they contain.
fn entries(folder: &Directory) -> Vec<(String, String)> {
    let mode = |is_executable: bool| if is_executable { " executable" } else { "" };
    let files = folder
        .files
        .iter()
        .map(|it| (it.name.clone(), format!("{}{}", text(it.digest.as_ref()), mode(it.is_executable))));
    let links = folder.symlinks.iter().map(|it| (it.name.clone(), format!("→ {}", it.target)));
    files.chain(links).collect()
}

fn text(digest: Option<&reapi::execution::Digest>) -> String {
    digest.map(|it| format!("{}/{}", it.hash, it.size_bytes)).unwrap_or_default()
}
