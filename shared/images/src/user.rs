//! The user that an image names for its commands (`USER` of a Dockerfile).

use sandbox::User;

use crate::{
    error::{ImageError, shown},
    tree::ImageTree,
};

/// Where an image has its users and groups.
const USERS: &str = "etc/passwd";
const GROUPS: &str = "etc/group";
/// Maximum bytes of each of these files.
const BYTES_MAX: u64 = 1 << 20;
/// The largest id that images use.
const ID_MAX: u32 = 0x7fff_ffff;
/// The home of users that the image does not know.
const NO_HOME: &str = "/";

/// The user of the commands of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageUser {
    pub ids: User,
    /// Its name in the image, if it has one.
    pub name: Option<String>,
    pub home: String,
}

/// A line of the file with users.
struct UserLine<'a> {
    name: &'a [u8],
    ids: User,
    home: Option<&'a str>,
}

impl<'a> UserLine<'a> {
    /// `None` for a line that is none of a user.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b':');
        let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        if name.is_empty() {
            return None;
        }
        let home = fields.nth(1).and_then(|home| std::str::from_utf8(home).ok());
        let is_path = |home: &&str| home.starts_with('/') && !home.chars().any(char::is_control);
        Some(Self { name, ids: User { uid: id(uid)?, gid: id(gid)? }, home: home.filter(is_path) })
    }
}

impl ImageUser {
    /// The user that `named` means in the image `tree`: `USER[:GROUP]`, each a name or a number.
    ///
    /// Fails if the image has no such user or group, or its files about them cannot be used.
    pub(crate) fn find(named: &str, tree: &ImageTree) -> Result<Self, ImageError> {
        let users = tree.read(USERS, BYTES_MAX)?.unwrap_or_default();
        let (user, group) = match named.split_once(':') {
            Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
            None => (named, None),
        };
        let mut found =
            Self::among(user, &users).ok_or_else(|| missing(named, ("user", user), USERS, "adduser"))?;
        if let Some(group) = group {
            let groups = tree.read(GROUPS, BYTES_MAX)?.unwrap_or_default();
            found.ids.gid = group_among(group, &groups)
                .ok_or_else(|| missing(named, ("group", group), GROUPS, "addgroup"))?;
        }
        Ok(found)
    }

    fn among(user: &str, users: &[u8]) -> Option<Self> {
        let number = id(user.as_bytes());
        let is_meant = |line: &UserLine<'_>| line.name == user.as_bytes() || Some(line.ids.uid) == number;
        let found = lines(users).filter_map(UserLine::parse).find(is_meant);
        let Some(UserLine { name, ids, home }) = found else {
            let ids = User { uid: number?, gid: 0 };
            return Some(Self { ids, name: None, home: NO_HOME.to_owned() });
        };
        let is_usual = |name: &&str| !name.is_empty() && !name.chars().any(char::is_control);
        let name = std::str::from_utf8(name).ok().filter(is_usual).map(str::to_owned);
        Some(Self { ids, name, home: home.unwrap_or(NO_HOME).to_owned() })
    }
}

fn group_among(group: &str, groups: &[u8]) -> Option<u32> {
    let parse = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = fields.next()?;
        (name == group.as_bytes()).then(|| id(fields.nth(1)?)).flatten()
    };
    lines(groups).find_map(parse).or_else(|| id(group.as_bytes()))
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
}

fn id(text: &[u8]) -> Option<u32> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()?;
    (number <= ID_MAX).then_some(number)
}

fn missing(named: &str, (what, name): (&str, &str), file: &str, command: &str) -> ImageError {
    let (named, name) = (shown(named.as_ref()), shown(name.as_ref()));
    ImageError::Invalid(format!(
        "it wants to run as the user {named} (USER), but its /{file} has no {what} {name}: name a number up to {ID_MAX}, or add \
         the {what} to the image ({command})"
    ))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use proptest::prelude::*;

    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n# comment\n\nbroken:x:y:1::/b:\n\
                          postgres:x:999:998:Db:/var/lib/postgresql:/bin/bash\n1000:x:5:5::/five:\n\
                          dev:x:1000:1001::relative:/bin/sh\nlast:x:7:8";
    const GROUP: &str = "root:x:0:\nstaff:x:50:dev,postgres\nbad:x:z:\n60:x:61:";

    fn image(passwd: Option<&[u8]>) -> (tempfile::TempDir, ImageTree) {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("etc")).unwrap();
        if let Some(passwd) = passwd {
            fs::write(place.path().join(USERS), passwd).unwrap();
            fs::write(place.path().join(GROUPS), GROUP).unwrap();
        }
        let tree = ImageTree::open(&[PathBuf::from(place.path())]).unwrap();
        (place, tree)
    }

    #[test]
    fn users_and_groups_are_found_by_name_and_by_number() {
        let (_place, tree) = image(Some(PASSWD.as_bytes()));
        for (named, uid, gid, name, home) in [
            ("root", 0, 0, Some("root"), "/root"),
            ("0", 0, 0, Some("root"), "/root"),
            ("postgres", 999, 998, Some("postgres"), "/var/lib/postgresql"),
            ("999", 999, 998, Some("postgres"), "/var/lib/postgresql"),
            ("postgres:", 999, 998, Some("postgres"), "/var/lib/postgresql"),
            ("postgres:staff", 999, 50, Some("postgres"), "/var/lib/postgresql"),
            ("postgres:77", 999, 77, Some("postgres"), "/var/lib/postgresql"),
            // As other tools read it, the first line counts that has the number as its name or as its id.
            ("1000:60", 5, 61, Some("1000"), "/five"),
            ("dev", 1000, 1001, Some("dev"), "/"),
            ("last", 7, 8, Some("last"), "/"),
            ("4000", 4000, 0, None, "/"),
            ("4000:staff", 4000, 50, None, "/"),
        ] {
            let wanted =
                ImageUser { ids: User { uid, gid }, name: name.map(str::to_owned), home: home.to_owned() };
            assert_eq!(ImageUser::find(named, &tree).unwrap(), wanted, "{named}");
        }
        let (_place, bare) = image(None);
        assert_eq!(ImageUser::find("1000:5", &bare).unwrap().ids, User { uid: 1000, gid: 5 });
    }

    #[test]
    fn a_user_that_the_image_lacks_is_refused_with_the_reason() {
        let (_place, tree) = image(Some(PASSWD.as_bytes()));
        let (_other, bare) = image(None);
        for (named, tree, part) in [
            ("nginx", &tree, "no user \"nginx\""),
            ("broken", &tree, "no user \"broken\""),
            ("postgres:wheel", &tree, "no group \"wheel\""),
            ("postgres:bad", &tree, "no group \"bad\""),
            ("root", &bare, "no user \"root\""),
            ("-1", &tree, "no user"),
            ("4294967295", &tree, "up to 2147483647"),
            (":5", &tree, "no user"),
            ("a\nb", &tree, "no user \"a\\nb\""),
        ] {
            let error = ImageUser::find(named, tree).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("/etc/"), "{named}: {error}");
        }
        let (_place, huge) = image(Some(&vec![b'x'; (1 << 20) + 1]));
        let error = ImageUser::find("1000", &huge).unwrap_err().to_string();
        assert!(error.contains("larger than"), "{error}");
    }

    proptest! {
        #[test]
        fn files_of_any_bytes_give_a_user_with_a_path_as_home(passwd: Vec<u8>, named in "[a-z:0-9]{0,6}") {
            let users = [passwd.as_slice(), b"\na:b:1:2::/x\0y:"].concat();
            if let Some(user) = ImageUser::among(&named, &users) {
                prop_assert!(user.home.starts_with('/') && !user.home.contains('\0'));
                prop_assert!(user.ids.uid <= ID_MAX && user.ids.gid <= ID_MAX);
            }
        }
    }
}
