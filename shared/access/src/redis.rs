//! Users of Redis, in the format of its file of access control lists.

use std::fmt::Write as _;

use crate::{Access, Role};

/// The content of Redis' file of users. Each service that uses the index has one, which may use the commands and keys of the
/// index only; without a user nothing is allowed. Operators may also read the file again and look at the server.
pub fn redis_acl(access: &Access) -> String {
    // Redis accepts no comments in this file.
    let mut text = String::from("user default off resetkeys resetchannels -@all\n");
    let (rules, of_operators) = (index::acl_rules(), index::operator_acl_rules());
    for (name, all) in access.services().iter().filter(|(name, _)| name.uses_redis()) {
        let hashes = all.iter().filter_map(|key| key.redis.as_ref());
        let hashes: Vec<String> = hashes.map(|hash| format!("#{hash}")).collect();
        let rules = if name.role() == Role::Operator { &of_operators } else { &rules };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "user {} on {} {rules}", name.bus_user(), hashes.join(" "));
    }
    text
}
