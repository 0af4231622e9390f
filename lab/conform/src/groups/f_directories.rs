//! Checks 95–97: malformed input roots.

use prost::Message as _;
use reapi::execution::{
    Digest, Directory, DirectoryNode, FileNode, SymlinkNode,
    symlink_absolute_path_strategy::Value as Strategy,
};
use tonic::Code;

use crate::{
    check::{Check, check},
    context::Cx,
    job::{Inputs, Job},
    names::fresh_text,
    stop::{Judged, Stop, has_code, need, pass},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(
        95,
        F,
        Must,
        Execution,
        "absolute symlinks among the inputs are treated as announced",
        absolute_symlink
    ),
    check!(96, F, May, Execution, "directories that are not canonical are refused", not_canonical),
    check!(97, F, May, Execution, "names that differ in case are both present, or refused", case),
];

const INVALID: &[Code] = &[Code::InvalidArgument];

async fn absolute_symlink(cx: &Cx) -> Judged {
    let strategy = cx.symlink_strategy();
    let inputs = Inputs::default().symlink("link", "/etc/hostname");
    let job = Job::sh("readlink link").inputs(inputs);
    match strategy {
        Strategy::Disallowed => {
            let what = "an absolute symlink among the inputs";
            has_code(Some(&cx.refusal(&job, what).await?), INVALID, what)?;
            pass()
        }
        Strategy::Allowed => {
            let target = cx.output(&job).await?;
            need!(target.trim() == "/etc/hostname", "an absolute symlink became {:?}", target.trim());
            pass()
        }
        Strategy::Unknown => {
            Err(Stop::Fail("symlink_absolute_path_strategy is UNKNOWN, so clients cannot decide".into()))
        }
    }
}

struct Broken {
    what: &'static str,
    directory: Directory,
}

fn broken(file: &Digest, directory: &Digest) -> Vec<Broken> {
    let node =
        |name: &str| FileNode { name: name.to_owned(), digest: Some(file.clone()), ..FileNode::default() };
    let child = |name: &str| DirectoryNode { name: name.to_owned(), digest: Some(directory.clone()) };
    let link =
        |name: &str| SymlinkNode { name: name.to_owned(), target: "x".into(), ..SymlinkNode::default() };
    let files = |what, names: &[&str]| Broken {
        what,
        directory: Directory { files: names.iter().copied().map(node).collect(), ..Directory::default() },
    };
    let directories = |what, names: &[&str]| Broken {
        what,
        directory: Directory {
            directories: names.iter().copied().map(child).collect(),
            ..Directory::default()
        },
    };
    let mixed = |what, directory| Broken { what, directory };
    vec![
        files("files that are not sorted", &["b", "a"]),
        directories("directories that are not sorted", &["b", "a"]),
        files("a file that is listed twice", &["a", "a"]),
        mixed(
            "a file and a directory of one name",
            Directory { files: vec![node("a")], directories: vec![child("a")], ..Directory::default() },
        ),
        mixed(
            "a file and a symlink of one name",
            Directory { files: vec![node("a")], symlinks: vec![link("a")], ..Directory::default() },
        ),
        files("a file with / in its name", &["a/b"]),
        files("an absolute file", &["/tmp/conform-escaped"]),
        files("a file called ..", &[".."]),
        files("a file called ../x", &["../conform-escaped"]),
        files("a file called .", &["."]),
        files("a file without a name", &[""]),
        directories("a directory called ..", &[".."]),
        directories("a directory without a name", &[""]),
        mixed("a symlink called ..", Directory { symlinks: vec![link("..")], ..Directory::default() }),
        mixed(
            "a file without a digest",
            Directory {
                files: vec![FileNode { name: "a".into(), ..FileNode::default() }],
                ..Directory::default()
            },
        ),
    ]
}

async fn not_canonical(cx: &Cx) -> Judged {
    let client = &cx.client;
    let file = client.put(fresh_text().as_bytes()).await?;
    let inner = Directory {
        files: vec![FileNode { name: "f".into(), digest: Some(file.clone()), ..FileNode::default() }],
        ..Directory::default()
    };
    let inner = client.put(&inner.encode_to_vec()).await?;
    for Broken { what, directory } in broken(&file, &inner) {
        let root = client.put(&directory.encode_to_vec()).await?;
        // Once as the root, once below it.
        let above = Directory {
            directories: vec![DirectoryNode { name: "below".into(), digest: Some(root.clone()) }],
            ..Directory::default()
        };
        let above = client.put(&above.encode_to_vec()).await?;
        for root in [root, above] {
            let mut job = Job::program(["/bin/true"]);
            job.root = Some(root);
            let what = format!("an input root with {what}");
            has_code(Some(&cx.refusal(&job, &what).await?), INVALID, &what)?;
        }
    }
    let escaped =
        cx.output(&Job::sh("ls -d /tmp/conform-escaped ../conform-escaped 2>/dev/null; true")).await?;
    need!(escaped.is_empty(), "an input left its root: {escaped}");
    pass()
}

async fn case(cx: &Cx) -> Judged {
    let inputs = Inputs::default().file("Foo", "upper").file("foo", "lower");
    let job = Job::sh("cat Foo; echo; cat foo").inputs(inputs);
    let prepared = cx.prepare(&job);
    cx.client.put_all(&prepared.all()).await?;
    match cx.execute(&prepared, &job).await {
        Ok(running) => {
            let run = running.finish().await?;
            if run.status().0 == Code::Ok {
                let output = cx.stdout(run.exited(0)?).await?;
                need!(output == "upper\nlower", "Foo and foo became {output:?}");
            }
        }
        Err(status) => need!(
            matches!(status.code(), Code::InvalidArgument | Code::FailedPrecondition),
            "Foo beside foo is answered with {}",
            status.code()
        ),
    }
    pass()
}
