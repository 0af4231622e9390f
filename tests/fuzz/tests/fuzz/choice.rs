//! One of several parsers in one target, by the first byte of the input.

/// A parser, which says what came of an input.
pub(crate) type Reader = fn(&[u8]) -> String;

/// A good input of the parser at this place in the list.
pub(crate) fn seed(place: usize, content: impl AsRef<[u8]>) -> Vec<u8> {
    [&[u8::try_from(place).unwrap()], content.as_ref()].concat()
}

/// Gives the rest of an input to the parser that its first byte chooses.
pub(crate) fn read(readers: &[Reader], input: &[u8]) -> String {
    let (first, rest) = input.split_first().unwrap_or((&0, &[]));
    let place = usize::from(*first) % readers.len();
    format!("{}{}", char::from(b'A' + u8::try_from(place % 26).unwrap()), readers[place](rest))
}

/// The outcome without its value.
pub(crate) fn outcome<T, E: std::fmt::Display>(result: Result<T, E>) -> String {
    result.map_or_else(|error| error.to_string(), |_| "read".to_owned())
}
