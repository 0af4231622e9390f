//! Rules for instance names.

use tonic::Status;

/// Keywords of resource names, which cannot be segments of an instance name.
pub const RESERVED: [&str; 7] =
    ["blobs", "uploads", "actions", "actionResults", "operations", "capabilities", "compressed-blobs"];

/// Maximum length of an instance name in bytes.
pub const LENGTH_MAX: usize = 255;

/// A text that is not a valid instance name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid instance name {name:?}: {wrong}")]
pub struct InstanceNameError {
    name: String,
    wrong: String,
}

impl From<InstanceNameError> for Status {
    fn from(error: InstanceNameError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

/// Checks an instance name: empty, or segments with `/` between them.
pub fn check(name: &str) -> Result<(), InstanceNameError> {
    let wrong = |wrong: String| InstanceNameError { name: name.chars().take(80).collect(), wrong };
    if name.is_empty() {
        return Ok(());
    }
    if name.len() > LENGTH_MAX {
        return Err(wrong(format!("it is longer than {LENGTH_MAX} bytes")));
    }
    name.split('/').try_for_each(|segment| check_segment(segment).map_err(wrong))
}

fn check_segment(segment: &str) -> Result<(), String> {
    if segment.is_empty() {
        return Err("a segment is empty".into());
    }
    if RESERVED.contains(&segment) {
        return Err(format!("{segment:?} is a keyword of resource names"));
    }
    if matches!(segment, "." | "..") || segment.chars().any(char::is_control) {
        return Err(format!("{segment:?} is not a valid segment"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_number_of_segments_are_taken() {
        for good in ["", "main", "a/b/c", "Blobs", "blobs2", "logstreams", "with space", "ü"] {
            assert_eq!(check(good), Ok(()), "{good:?}");
        }
        let long = "x".repeat(LENGTH_MAX + 1);
        for bad in ["/", "a//b", "/a", "a/", "..", "a/./b", "a\0", "a\nb", &long] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn words_of_resource_names_are_refused_in_any_place() {
        for word in RESERVED {
            for bad in [word.to_owned(), format!("{word}/b"), format!("a/{word}"), format!("a/{word}/b")] {
                let status = Status::from(check(&bad).unwrap_err());
                assert_eq!(status.code(), tonic::Code::InvalidArgument, "{bad:?}");
            }
        }
    }
}
