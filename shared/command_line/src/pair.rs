//! Options of the form `NAME=VALUE`.

/// Parses `NAME=VALUE`; the name must not be empty.
pub fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    if name.is_empty() {
        return Err("expected NAME=VALUE".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}
