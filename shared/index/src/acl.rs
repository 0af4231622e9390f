//! What users of the index need from an access control list of Redis. A script runs with the rights of its caller.

/// The rules of a user that may use both indexes and nothing else of Redis.
pub fn acl_rules() -> String {
    let keys: Vec<String> = KEYS.iter().map(|pattern| format!("~{pattern}")).collect();
    let commands: Vec<String> = COMMANDS.iter().map(|command| format!("+{command}")).collect();
    format!("resetkeys {} resetchannels -@all {}", keys.join(" "), commands.join(" "))
}

/// What an operator may do besides: have Redis read its file of users again, and see who it is.
pub fn operator_acl_rules() -> String {
    format!("{} +acl|load +acl|whoami", acl_rules())
}

/// The commands that the index uses, in its scripts and without them, and those that open a connection. As Redis spells them
/// in access control lists, in lower case. The library also sends `client|setinfo`, which it can do without and Redis before
/// 7.2 does not know.
const COMMANDS: &[&str] = &[
    "del",
    "evalsha",
    "exists",
    "get",
    "hdel",
    "hello",
    "hexists",
    "hget",
    "hgetall",
    "hincrby",
    "hkeys",
    "hlen",
    "hmget",
    "hscan",
    "hset",
    "hvals",
    "info",
    "lpush",
    "lrange",
    "ltrim",
    "pexpire",
    "ping",
    "sadd",
    "scard",
    "script|load",
    "set",
    "sismember",
    "smembers",
    "srandmember",
    "srem",
    "time",
    "unlink",
    "zadd",
    "zcard",
    "zcount",
    "zrange",
    "zrangebyscore",
    "zrank",
    "zrem",
    "zrevrange",
    "zscore",
];

/// Patterns of the keys of both indexes.
const KEYS: &[&str] = &["forebay:{index}:*", "forebay:{actions}:*"];

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        fs,
        path::{Path, PathBuf},
    };

    use super::{COMMANDS, KEYS};

    /// Sent by the client library: when it connects, and to run a script.
    const OF_THE_LIBRARY: [&str; 4] = ["evalsha", "hello", "ping", "script|load"];

    fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.extend(files(&path, ending));
            } else if path.extension().is_some_and(|extension| extension == ending) {
                found.push(path);
            }
        }
        found
    }

    /// The words in capitals between `quote`s in the first argument of each call of `function`.
    fn called(text: &str, function: &str, quote: char) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for call in text.split(function).skip(1) {
            let argument = call.split([',', ')']).next().unwrap_or_default();
            let quoted = argument.split(quote).skip(1).step_by(2);
            let words =
                quoted.filter(|word| !word.is_empty() && word.bytes().all(|c| c.is_ascii_uppercase()));
            found.extend(words.map(str::to_lowercase));
        }
        found
    }

    #[test]
    fn the_commands_are_those_of_the_sources() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut used: BTreeSet<String> = OF_THE_LIBRARY.map(str::to_owned).into();
        for script in files(&here.join("lua"), "lua") {
            let text = fs::read_to_string(script).unwrap();
            used.extend(called(&text, "redis.call(", '\''));
            let calls = text.matches("redis.call(").count();
            let dynamic = text.matches("redis.pcall").count();
            assert!(dynamic == 0 && calls < 1000, "a script calls in another way");
        }
        for source in files(&here.join("src"), "rs") {
            let text = fs::read_to_string(source).unwrap();
            used.extend(called(&text, "cmd(", '"'));
        }
        assert!(used.remove("acl"), "operators have a right that no source uses");
        // Asked of a Redis that admits everyone.
        assert!(used.remove("config"), "no source asks for the configuration");
        let listed: BTreeSet<String> = COMMANDS.iter().map(|command| (*command).to_owned()).collect();
        assert_eq!(listed, used);
        assert_eq!(listed.len(), COMMANDS.len(), "a command is listed twice");
    }

    #[test]
    fn the_patterns_match_the_keys_of_both_indexes() {
        let keys = [
            crate::script::META.to_owned(),
            crate::script::key("x"),
            crate::actions::script::META.to_owned(),
        ];
        for key in keys {
            let matches = |pattern: &&str| key.starts_with(pattern.trim_end_matches('*'));
            assert!(KEYS.iter().any(matches), "{key}");
        }
    }
}
