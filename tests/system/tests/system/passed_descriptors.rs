//! Attackers that keep files of the farm open: processes that reach each other over a local socket without a file pass descriptors.

use farm::Farm;
use model::{Outcome, State};
use serde_json::json;

use crate::{
    check::{ended_as, script},
    jobs,
};

/// Receives descriptors on the socket `\0NAME`, with a word each. At the word `now` it writes a file into each folder, and changes
/// each file; then it answers with the names that it saw in the folders.
const HOLDER: &str = r"
import array, os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind('\0' + sys.argv[1])
listener.listen(100)
held = []
while True:
    peer, _ = listener.accept()
    word, more, _, _ = peer.recvmsg(10, socket.CMSG_SPACE(4))
    for _, _, found in more:
        held.append((word, array.array('i', found)[0]))
    if word == b'now':
        seen = []
        for word, it in held:
            try:
                if word == b'file':
                    os.pwrite(it, b'forged', 0)
                else:
                    seen += os.listdir(it)
                    os.close(os.open('forged', os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=it))
            except OSError:
                pass
        print('held', len(held), 'seen', seen, flush=True)
        peer.sendall(' '.join(seen).encode() + b'.')
    peer.close()
";

/// Passes the paths given as `WORD=PATH` to the holder `NAME`. The word `now` has no path, and waits for the answer.
const PASS: &str = r"
import array, os, socket, sys, time
for word, _, path in (it.partition('=') for it in sys.argv[2:]):
    peer = socket.socket(socket.AF_UNIX)
    for _ in range(400):
        try:
            peer.connect('\0' + sys.argv[1])
            break
        except OSError:
            time.sleep(0.05)
    more = []
    if path:
        it = os.open(path, os.O_RDWR if word == 'file' else os.O_RDONLY)
        more = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [it]).tobytes())]
    peer.sendmsg([word.encode()], more)
    print('answer', peer.recv(1000).decode())
";

/// A shell function that passes paths.
fn passing(text: &str) -> String {
    format!("pass() {{ /usr/bin/python3 -c '{}' holder \"$@\"; }}; {text}", PASS.replace('\'', "'\\''"))
}

async fn said(farm: &Farm, key: &model::BuildKey) -> String {
    farm.cli(&["logs", &key.to_string()]).await.stdout
}

#[tokio::test]
async fn s14_folders_that_a_build_keeps_open_are_not_those_of_another_group() {
    let farm = Farm::builder().without("gateway").workspaces(2).env("FOREBAY_BUILD_SANDBOX", "bubblewrap");
    let farm = farm.start().await;
    let mut hold = script("");
    hold.command = ["/usr/bin/python3", "-u", "-c", HOLDER, "holder"].map(str::to_owned).to_vec();
    let holder = farm.submit("other", hold).await;
    farm.wait_until(&holder, farm::SOON, |record| record.state() == State::InProgress).await;
    let open = passing("chmod 777 . $HOME $TMPDIR /tmp; pass dir=. dir=$HOME dir=$TMPDIR dir=/tmp");
    let first = farm.submit("other", script(&open)).await;
    ended_as(&farm, &first, Outcome::Succeeded).await;
    let work = passing(
        "echo secret >source; echo secret >$HOME/token; touch /tmp/mine; pass now; ls -a . $HOME $TMPDIR /tmp",
    );
    let victim = farm.submit("web", script(&work)).await;
    ended_as(&farm, &victim, Outcome::Succeeded).await;
    let shown = said(&farm, &victim).await;
    assert!(!shown.contains("forged"), "{shown}");
    let answer = shown.lines().find(|line| line.starts_with("answer")).unwrap();
    assert!(!answer.contains("source") && !answer.contains("token") && !answer.contains("mine"), "{shown}");
    farm.client().cancel(&holder, None).await.unwrap();
}

#[tokio::test]
async fn s14_what_a_service_keeps_open_is_neither_stored_nor_used_again() {
    let farm = Farm::builder().with_actions().workspaces(1).start().await;
    let folders: Vec<String> = (0..40).map(|number| format!("d{number}")).collect();
    let all = folders.join(" ");
    let open: Vec<String> = folders.iter().map(|folder| format!("dir={folder}")).collect();
    let make = format!(
        "mkdir {all}; for d in {all}; do echo x >$d/f; done; echo honest >out; pass dir=. file=out {}",
        open.join(" ")
    );
    // Its inputs are in folders that the executor makes or uses again.
    let read = "pass now; cat out; find .";
    let task = |id: &str, text: &str| json!({"id": id, "command": ["/bin/sh", "-ec", passing(text)], "shared_services": true});
    let mut first = task("first", &make);
    let outputs: Vec<&str> = folders.iter().map(String::as_str).chain(["out"]).collect();
    first["outputs"] = json!(outputs);
    let mut second = task("second", read);
    (second["inputs"], second["dependencies"]) = (json!(outputs), json!(["first"]));
    let services = json!([{"name": "holder", "command": ["/usr/bin/python3", "-u", "-c", HOLDER, "holder"]}]);
    let job = serde_json::from_value(json!({"services": services, "tasks": [first, second]})).unwrap();
    let ended = jobs::run(&farm, jobs::request(job)).await;
    assert_eq!(ended.outcome(), Outcome::Succeeded, "{:#?}", ended.reports);
    let shown = said(&farm, &ended.record.build.key()).await;
    assert!(shown.contains("honest") && shown.contains("./d39/f") && !shown.contains("forged"), "{shown}");
}
