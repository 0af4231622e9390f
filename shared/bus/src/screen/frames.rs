//! The protocol between nats-server and its clients, as far as the relay has to understand it.

use std::{
    io,
    str::{self, FromStr as _},
};

use async_nats::{HeaderName, StatusCode};
use bytes::{Buf as _, BytesMut};

use super::invalid;
use crate::headers::UNREADABLE;

const LINE_END: &[u8] = b"\r\n";
/// Maximum size of a line in bytes; nats-server allows 4 KiB for what a client sends.
const LINE_BYTES_MAX: usize = 64 << 10;
const VERSION: &str = "NATS/1.0";
/// Beginning of the reply subject of a message that a consumer delivers.
const ACKNOWLEDGED_AT: &[u8] = b"$JS.ACK.";

/// What was passed on, apart from the bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Passed {
    /// Descriptions of the server, which are not passed on.
    pub(super) infos: Vec<BytesMut>,
    /// Number of messages whose headers were replaced, or that were dropped.
    pub(super) replaced: usize,
}

/// Moves all complete frames of the server from `unread` to `out`.
pub(super) fn pass(unread: &mut BytesMut, out: &mut BytesMut) -> io::Result<Passed> {
    let mut passed = Passed::default();
    while let Some(end) = memchr::memmem::find(unread, LINE_END) {
        let head = unread.get(..end).unwrap_or_default();
        if let Some(info) = head.strip_prefix(b"INFO ") {
            passed.infos.push(info.into());
            unread.advance(end + LINE_END.len());
            continue;
        }
        let Some(message) = MessageHead::of(head)? else {
            out.extend_from_slice(&unread.split_to(end + LINE_END.len()));
            continue;
        };
        let content = end + LINE_END.len();
        let after = content.saturating_add(message.total_bytes).saturating_add(LINE_END.len());
        let Some(frame) = unread.get(..after) else { return Ok(passed) };
        let content = frame.get(content..after - LINE_END.len()).unwrap_or_default();
        let (header, payload) = content.split_at_checked(message.header_bytes).unwrap_or((content, &[]));
        match message.fault(header) {
            None => out.extend_from_slice(frame),
            Some(fault) => {
                passed.replaced += 1;
                message.write_unreadable(fault, header, payload, out);
            }
        }
        unread.advance(after);
    }
    if unread.len() > LINE_BYTES_MAX && memchr::memmem::find(unread, LINE_END).is_none() {
        return Err(invalid("a line of the server is too long"));
    }
    Ok(passed)
}

/// Takes the first line, without its end.
pub(super) fn line(unread: &mut BytesMut) -> Option<BytesMut> {
    let end = memchr::memmem::find(unread, LINE_END)?;
    let line = unread.split_to(end);
    unread.advance(LINE_END.len());
    Some(line)
}

/// The first line of a message.
struct MessageHead<'a> {
    subject: &'a [u8],
    subscription: &'a [u8],
    reply: Option<&'a [u8]>,
    has_headers: bool,
    header_bytes: usize,
    /// Size of headers and payload.
    total_bytes: usize,
}

impl<'a> MessageHead<'a> {
    /// The first line of a message; `None` for another frame.
    fn of(line: &'a [u8]) -> io::Result<Option<Self>> {
        let (fields, has_headers) = match (line.strip_prefix(b"MSG "), line.strip_prefix(b"HMSG ")) {
            (Some(fields), _) => (fields, false),
            (None, Some(fields)) => (fields, true),
            (None, None) => return Ok(None),
        };
        let mut fields: Vec<&[u8]> =
            fields.split(|byte| *byte == b' ').filter(|field| !field.is_empty()).collect();
        let mut size = || fields.pop().and_then(|field| str::from_utf8(field).ok()?.parse::<usize>().ok());
        let total_bytes = size();
        let header_bytes = if has_headers { size() } else { Some(0) };
        let (Some(total_bytes), Some(header_bytes)) = (total_bytes, header_bytes) else {
            return Err(invalid("a message of the server has no size"));
        };
        let (subject, subscription, reply) = match fields[..] {
            [subject, subscription] => (subject, subscription, None),
            [subject, subscription, reply] => (subject, subscription, Some(reply)),
            _ => return Err(invalid("a message of the server has no subject")),
        };
        if header_bytes > total_bytes {
            return Err(invalid("a message of the server is smaller than its headers"));
        }
        Ok(Some(Self { subject, subscription, reply, has_headers, header_bytes, total_bytes }))
    }

    /// Why the client library cannot read the message.
    fn fault(&self, header: &[u8]) -> Option<&'static str> {
        // It splits the line of a message with headers at any white space of Unicode.
        let is_word =
            |field: &[u8]| str::from_utf8(field).is_ok_and(|text| !text.contains(char::is_whitespace));
        if !is_word(self.subject) {
            return Some("its subject is not UTF-8 without white space");
        }
        if self.reply.is_some_and(|reply| !is_word(reply)) {
            return Some("its reply subject is not UTF-8 without white space");
        }
        if !self.has_headers {
            return None;
        }
        // The library takes a status for one of the server: the end of a batch, for example.
        let is_delivery = self.reply.is_some_and(|reply| reply.starts_with(ACKNOWLEDGED_AT));
        match header_fault(header) {
            Ok(Status::Some) if is_delivery => Some("its headers begin with a status"),
            Ok(Status::None | Status::Some) => None,
            Err(fault) => Some(fault),
        }
    }

    /// Writes the message with the headers that can be read and the fault. One that cannot be answered is dropped.
    fn write_unreadable(&self, fault: &str, header: &[u8], payload: &[u8], out: &mut BytesMut) {
        let reply = self.reply.map(str::from_utf8).transpose();
        let Ok(reply) = reply else { return };
        if reply.is_some_and(|reply| reply.contains(char::is_whitespace)) {
            return;
        }
        let mut headers = format!("{VERSION}\r\n{UNREADABLE}: {fault}\r\n");
        for line in readable_lines(header) {
            headers.push_str(line);
            headers.push_str("\r\n");
        }
        headers.push_str("\r\n");
        // A name with this character is not valid anywhere in Forebay.
        let subject =
            self.subject.iter().map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' });
        let subject: String = subject.collect();
        let subscription = String::from_utf8_lossy(self.subscription);
        let reply = reply.map(|reply| format!("{reply} ")).unwrap_or_default();
        let (of_headers, of_all) = (headers.len(), headers.len() + payload.len());
        let line = format!("HMSG {subject} {subscription} {reply}{of_headers} {of_all}\r\n{headers}");
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(payload);
        out.extend_from_slice(LINE_END);
    }
}

/// Whether the headers of a message begin with a status.
enum Status {
    None,
    Some,
}

/// Reads headers as the client library does.
fn header_fault(header: &[u8]) -> Result<Status, &'static str> {
    let text = str::from_utf8(header).map_err(|_| "its headers are not UTF-8")?;
    // The library panics if a value has one.
    if text.lines().any(|line| line.contains('\r')) {
        return Err("one of its headers has a carriage return");
    }
    let mut lines = text.lines().peekable();
    let version = lines.next().and_then(|line| line.strip_prefix(VERSION)).map(str::trim);
    let version = version.ok_or("its headers do not begin with NATS/1.0")?;
    let status = version.split_once(' ').map_or(version, |(status, _)| status.trim());
    if !status.is_empty() && status.parse::<StatusCode>().is_err() {
        return Err("the first line of its headers is malformed");
    }
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let (name, _) = line.split_once(':').ok_or("one of its headers has no colon")?;
        HeaderName::from_str(name).map_err(|_| "the name of one of its headers is not valid")?;
        while lines.next_if(|line| line.starts_with(char::is_whitespace)).is_some() {}
    }
    Ok(if status.is_empty() { Status::None } else { Status::Some })
}

/// The headers after the first line that have one line and can be read.
fn readable_lines(header: &[u8]) -> impl Iterator<Item = &str> {
    let lines = header.split(|byte| *byte == b'\n').skip(1).filter_map(|line| str::from_utf8(line).ok());
    let lines = lines.map(|line| line.strip_suffix('\r').unwrap_or(line));
    lines.filter(|line| {
        !line.contains('\r')
            && line.split_once(':').is_some_and(|(name, _)| HeaderName::from_str(name).is_ok())
    })
}

#[cfg(test)]
mod tests;
