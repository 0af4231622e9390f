//! A span that has ended.

use std::borrow::Cow;
use std::time::SystemTime;

use crate::trace_context::{SpanContext, SpanId};

/// A span that has ended, with an id that its maker chose.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub context: SpanContext,
    /// Its parent in the same trace; none for the first span of a trace.
    pub parent: Option<SpanId>,
    pub name: Cow<'static, str>,
    pub kind: SpanKind,
    pub start: SystemTime,
    /// If it lies before the start, which the clocks of two machines can cause, the span has no length.
    pub end: SystemTime,
    pub attributes: Vec<(&'static str, Attribute)>,
    /// What happened at a time inside the span.
    pub events: Vec<(SystemTime, &'static str)>,
    /// Spans that are related without being parents, also of other traces; at most [`LINKS_MAX`] are exported.
    pub links: Vec<SpanContext>,
    /// Why it failed; none if it did not.
    pub error: Option<String>,
}

/// Maximum number of links of a span. Receivers drop more than 128 without a word.
pub const LINKS_MAX: usize = 100;

/// Role of a span in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    Internal,
    Server,
    Client,
    Producer,
    Consumer,
}

/// Value of an attribute of a span.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    Text(Cow<'static, str>),
    Number(i64),
    Fraction(f64),
    Flag(bool),
}

impl Span {
    /// A span inside one process, without attributes, links or error.
    pub fn new(
        context: SpanContext,
        parent: Option<SpanId>,
        name: impl Into<Cow<'static, str>>,
        start: SystemTime,
        end: SystemTime,
    ) -> Self {
        Self {
            context,
            parent,
            name: name.into(),
            kind: SpanKind::Internal,
            start,
            end,
            attributes: Vec::new(),
            events: Vec::new(),
            links: Vec::new(),
            error: None,
        }
    }

    #[must_use]
    pub fn kind(self, kind: SpanKind) -> Self {
        Self { kind, ..self }
    }

    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Attribute>) -> Self {
        self.attributes.push((name, value.into()));
        self
    }

    /// Adds the attribute if there is a value.
    #[must_use]
    pub fn with_some(self, name: &'static str, value: Option<impl Into<Attribute>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    #[must_use]
    pub fn event(mut self, at: SystemTime, name: &'static str) -> Self {
        self.events.push((at, name));
        self
    }

    #[must_use]
    pub fn link(mut self, to: SpanContext) -> Self {
        self.links.push(to);
        self
    }

    #[must_use]
    pub fn error(self, error: Option<String>) -> Self {
        Self { error, ..self }
    }

    /// Bytes of memory that it takes, roughly.
    pub(crate) fn size(&self) -> usize {
        let text = |attribute: &Attribute| match attribute {
            Attribute::Text(text) => text.len(),
            Attribute::Number(_) | Attribute::Fraction(_) | Attribute::Flag(_) => 0,
        };
        let attributes: usize =
            self.attributes.iter().map(|(_, value)| size_of::<(&str, Attribute)>() + text(value)).sum();
        let links = self.links.len() * size_of::<SpanContext>();
        let error = self.error.as_ref().map_or(0, String::len);
        size_of::<Self>() + self.name.len() + attributes + links + error
    }
}

impl From<String> for Attribute {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<&'static str> for Attribute {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<bool> for Attribute {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<i32> for Attribute {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u32> for Attribute {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u64> for Attribute {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<f64> for Attribute {
    fn from(number: f64) -> Self {
        Self::Fraction(number)
    }
}
