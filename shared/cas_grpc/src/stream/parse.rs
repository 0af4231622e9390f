//! Parses `WriteRequest` messages incrementally, so that a message is never held whole.

use bytes::{Buf as _, Bytes};
use invariant::Present as _;
use tonic::Status;

use super::wire::compressed;

/// Maximum length of a resource name in bytes.
const NAME_BYTES_MAX: u64 = reapi::resource::LENGTH_MAX as u64;

/// A state that cannot occur.
const LONG_PART: &str = "a part of a field is longer than the field";

/// The parts of a message, in the order in which they appear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// The name of the resource.
    Name(String),
    /// The offset of the data.
    Offset(i64),
    /// The write is complete with this message.
    Finish,
    /// A part of the data.
    Data(Bytes),
    /// The end of the message.
    End,
}

#[derive(Debug)]
enum State {
    /// In the flag and length that precede a message.
    Head {
        taken: u8,
    },
    Tag,
    /// Before the value of a numeric field.
    Number {
        field: u64,
    },
    /// Before the length of a field.
    Length {
        field: u64,
    },
    /// In the resource name.
    Name {
        left: u32,
        text: Vec<u8>,
    },
    Data {
        left: u32,
    },
    /// In a field that is ignored.
    Skip {
        left: u32,
    },
}

#[derive(Debug)]
pub(super) struct Parser {
    input: Bytes,
    state: State,
    /// Bytes of the message that are not received yet.
    left: u32,
    number: u64,
    shift: u32,
}

fn malformed(what: &str) -> Status {
    Status::invalid_argument(format!("the request is malformed: {what}"))
}

impl Parser {
    pub(super) fn new() -> Self {
        Self { input: Bytes::new(), state: State::Head { taken: 0 }, left: 0, number: 0, shift: 0 }
    }

    /// Adds the next bytes. Call this only after [`Parser::next`] has returned `None`.
    pub(super) fn feed(&mut self, bytes: Bytes) {
        debug_assert!(self.input.is_empty(), "input is left to parse");
        self.input = bytes;
    }

    /// Whether the input ends at the end of a message.
    pub(super) fn is_between_messages(&self) -> bool {
        self.input.is_empty() && matches!(self.state, State::Head { taken: 0 })
    }

    /// Returns the next part; `None` if more bytes are needed.
    pub(super) fn next(&mut self) -> Result<Option<Part>, Status> {
        loop {
            let state = std::mem::replace(&mut self.state, State::Tag);
            match self.step(state)? {
                Step::Part(part) => return Ok(Some(part)),
                Step::On => {}
                Step::Wait(state) => {
                    self.state = state;
                    return Ok(None);
                }
            }
        }
    }

    fn step(&mut self, state: State) -> Result<Step, Status> {
        match state {
            State::Head { taken } => self.head(taken),
            State::Tag => self.tag(),
            State::Number { field } => {
                let Some(number) = self.number()? else { return Ok(Step::Wait(state)) };
                Ok(match field {
                    2 => Step::Part(Part::Offset(number.cast_signed())),
                    3 if number != 0 => Step::Part(Part::Finish),
                    _ => Step::On,
                })
            }
            State::Length { field } => {
                let Some(length) = self.number()? else { return Ok(Step::Wait(state)) };
                self.state = self.field(field, length)?;
                Ok(Step::On)
            }
            State::Name { left, text } => self.name(left, text),
            State::Data { left } => {
                let data = self.take(left);
                let left = left - u32::try_from(data.len()).present_or(left, LONG_PART);
                if data.is_empty() && left > 0 {
                    return Ok(Step::Wait(State::Data { left }));
                }
                if left > 0 {
                    self.state = State::Data { left };
                }
                Ok(if data.is_empty() { Step::On } else { Step::Part(Part::Data(data)) })
            }
            State::Skip { left } => {
                let skipped = self.take(left).len();
                let left = left - u32::try_from(skipped).present_or(left, LONG_PART);
                Ok(if left > 0 { Step::Wait(State::Skip { left }) } else { Step::On })
            }
        }
    }

    fn head(&mut self, taken: u8) -> Result<Step, Status> {
        let Some(byte) = self.byte() else { return Ok(Step::Wait(State::Head { taken })) };
        if taken == 0 {
            if byte != 0 {
                return Err(compressed());
            }
            self.left = 0;
        } else {
            self.left = self.left << 8 | u32::from(byte);
        }
        if taken < 4 {
            self.state = State::Head { taken: taken + 1 };
        }
        Ok(Step::On)
    }

    fn tag(&mut self) -> Result<Step, Status> {
        if self.left == 0 && self.shift == 0 {
            self.state = State::Head { taken: 0 };
            return Ok(Step::Part(Part::End));
        }
        let Some(tag) = self.number()? else { return Ok(Step::Wait(State::Tag)) };
        let field = tag >> 3;
        self.state = match tag & 7 {
            0 => State::Number { field },
            1 => self.skip(8)?,
            2 => State::Length { field },
            5 => self.skip(4)?,
            _ => return Err(malformed("unknown field type")),
        };
        Ok(Step::On)
    }

    fn field(&self, field: u64, length: u64) -> Result<State, Status> {
        let left = u32::try_from(length).ok().filter(|length| *length <= self.left);
        let left = left.ok_or_else(|| malformed("a field is longer than its message"))?;
        match field {
            1 if length > NAME_BYTES_MAX => Err(malformed("the resource name is too long")),
            1 => Ok(State::Name { left, text: Vec::new() }),
            10 => Ok(State::Data { left }),
            _ => Ok(State::Skip { left }),
        }
    }

    fn skip(&self, left: u32) -> Result<State, Status> {
        if left > self.left {
            return Err(malformed("a field is longer than its message"));
        }
        Ok(State::Skip { left })
    }

    fn name(&mut self, left: u32, mut text: Vec<u8>) -> Result<Step, Status> {
        let part = self.take(left);
        text.extend_from_slice(&part);
        let left = left - u32::try_from(part.len()).present_or(left, LONG_PART);
        if left > 0 {
            return Ok(Step::Wait(State::Name { left, text }));
        }
        let name = String::from_utf8(text).map_err(|_| malformed("the resource name is not UTF-8"))?;
        Ok(Step::Part(Part::Name(name)))
    }

    /// Returns the next byte of the input; does not change `left`.
    fn byte(&mut self) -> Option<u8> {
        (!self.input.is_empty()).then(|| self.input.get_u8())
    }

    /// Returns up to `most` bytes of the message.
    fn take(&mut self, most: u32) -> Bytes {
        let length = usize::try_from(most).unwrap_or(usize::MAX).min(self.input.len());
        self.left = self.left.saturating_sub(u32::try_from(length).present_or(most, LONG_PART));
        self.input.split_to(length)
    }

    /// Reads a varint of seven bits per byte; `None` if it continues in bytes that are not received yet.
    fn number(&mut self) -> Result<Option<u64>, Status> {
        loop {
            if self.left == 0 {
                return Err(malformed("a field is truncated"));
            }
            let Some(byte) = self.byte() else { return Ok(None) };
            self.left -= 1;
            if self.shift > 63 {
                return Err(malformed("a number is too long"));
            }
            self.number |= u64::from(byte & 0x7f) << self.shift;
            self.shift += 7;
            if byte < 0x80 {
                self.shift = 0;
                return Ok(Some(std::mem::take(&mut self.number)));
            }
        }
    }
}

enum Step {
    Part(Part),
    On,
    Wait(State),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;
    use reapi::stream::WriteRequest;

    use super::*;

    fn framed(message: &WriteRequest) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend_from_slice(&u32::try_from(message.encoded_len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(&message.encode_to_vec());
        bytes
    }

    fn parse(bytes: Vec<u8>, cuts: &[usize]) -> Result<(Vec<WriteRequest>, bool), Status> {
        let (mut parser, mut messages, mut data) = (Parser::new(), Vec::new(), Vec::new());
        let mut message = WriteRequest::default();
        let mut rest = Bytes::from(bytes);
        let mut cuts = cuts.iter().cycle();
        while !rest.is_empty() {
            parser.feed(rest.split_to((*cuts.next().unwrap()).min(rest.len())));
            while let Some(part) = parser.next()? {
                match part {
                    Part::Name(name) => message.resource_name = name,
                    Part::Offset(offset) => message.write_offset = offset,
                    Part::Finish => message.finish_write = true,
                    Part::Data(piece) => data.extend_from_slice(&piece),
                    Part::End => {
                        message.data = std::mem::take(&mut data).into();
                        messages.push(std::mem::take(&mut message));
                    }
                }
            }
        }
        Ok((messages, parser.is_between_messages()))
    }

    fn messages() -> impl Strategy<Value = Vec<WriteRequest>> {
        let data = proptest::collection::vec(any::<u8>(), 0..400);
        let message = ("[a-z/]{0,20}", any::<i64>(), any::<bool>(), data).prop_map(
            |(resource_name, write_offset, finish_write, data)| WriteRequest {
                resource_name,
                write_offset,
                finish_write,
                data: data.into(),
            },
        );
        proptest::collection::vec(message, 0..6)
    }

    proptest! {
        #[test]
        fn parts_are_those_of_the_messages_however_the_bytes_are_cut(
            messages in messages(), cuts in proptest::collection::vec(1..60usize, 1..50),
        ) {
            let bytes = messages.iter().flat_map(framed).collect();
            let (parsed, whole) = parse(bytes, &cuts).unwrap();
            prop_assert!(whole);
            prop_assert_eq!(parsed, messages);
        }

        #[test]
        fn garbage_is_refused_or_awaited_and_never_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), cuts in proptest::collection::vec(1..60usize, 1..9),
        ) {
            if let Err(status) = parse(bytes, &cuts) {
                let known = [tonic::Code::InvalidArgument, tonic::Code::Unimplemented];
                prop_assert!(known.contains(&status.code()));
            }
        }

        #[test]
        fn garbage_in_a_message_neither(
            message in proptest::collection::vec(any::<u8>(), 0..300), cut in 1..60usize,
        ) {
            let mut bytes = vec![0];
            bytes.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
            bytes.extend_from_slice(&message);
            let _ = parse(bytes, &[cut]);
        }
    }

    #[test]
    fn what_is_not_known_is_skipped() {
        let mut message = WriteRequest { resource_name: "n".into(), ..Default::default() }.encode_to_vec();
        // Fields 20, 21, 22 and 23: a number, eight bytes, text, four bytes.
        message.extend_from_slice(&[
            0xa0, 1, 5, 0xa9, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0xb2, 1, 2, 9, 9, 0xbd, 1, 1, 2, 3, 4,
        ]);
        message.extend_from_slice(&WriteRequest { write_offset: 3, ..Default::default() }.encode_to_vec());
        let mut bytes = vec![0];
        bytes.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(&message);
        let (parsed, whole) = parse(bytes, &[3]).unwrap();
        assert!(whole);
        assert_eq!((parsed[0].resource_name.as_str(), parsed[0].write_offset), ("n", 3));
    }
}
