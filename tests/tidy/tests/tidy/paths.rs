//! Files in which strangers' processes, or answers of a server, say what the paths are.

use tidy::files;

/// What works in workspaces with what a build left, or writes what a server sends: through `disk::Confined` and `disk::Place`.
const CONFINED: [&str; 13] = [
    "services/worker/src/home.rs",
    "services/worker/src/outputs.rs",
    "services/worker/src/owner.rs",
    "services/worker/src/sync.rs",
    "services/worker/src/sync/content.rs",
    "services/worker/src/sync/source.rs",
    "services/worker/src/tool_events.rs",
    "shared/jobs/src/scan.rs",
    "shared/jobs/src/small_file.rs",
    "shared/jobs/src/tree.rs",
    "services/forebay/src/exec_outputs.rs",
    "services/forebay/src/fetch.rs",
    "shared/transfer/src/lib.rs",
];

/// Calls that follow a link in any part of a path.
const FOLLOWING: [&str; 9] = [
    "File::open(",
    "File::create(",
    "fs::read(",
    "fs::read_to_string(",
    "fs::read_dir(",
    "fs::write(",
    "fs::copy(",
    "fs::set_permissions(",
    "remove_dir_all(",
];

#[test]
fn what_others_can_replace_is_opened_through_one_type() {
    let (files, mut found) = (files("rs"), Vec::new());
    for file in CONFINED {
        let text = &files.iter().find(|it| it.path == file).unwrap_or_else(|| panic!("{file} is gone")).text;
        let product = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for (number, line) in product.lines().enumerate() {
            // The path of a descriptor leads to what it refers to.
            let is_of_descriptor = line.contains("/proc/self/fd");
            if !is_of_descriptor && FOLLOWING.iter().any(|call| line.contains(call)) {
                found.push(format!("{file}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "use disk::Confined or disk::Place:\n{}", found.join("\n"));
}
