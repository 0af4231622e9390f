//! One route of the HTTP API: its handler, and what a client must know of it.

use axum::{
    handler::Handler,
    http::Method,
    routing::{self, MethodRouter},
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

use crate::{access::RouteNeed, failure::Failure, state::Api};

/// Produces the schema of a type; types that it refers to are collected by the generator.
pub(crate) type Schemas = fn(&mut SchemaGenerator) -> Schema;

/// A method of a path.
pub(crate) struct Endpoint {
    pub(crate) method: Method,
    /// The path in axum's notation; `{*name}` matches the rest of a path.
    pub(crate) path: &'static str,
    pub(crate) need: RouteNeed,
    /// Name of the operation for generated clients.
    pub(crate) id: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) body: Option<Body>,
    pub(crate) replies: Vec<Reply>,
    /// Status codes of failures, which are answered with an [`model::ApiError`].
    pub(crate) failures: Vec<u16>,
    pub(crate) handler: MethodRouter<Api>,
}

/// A parameter of a request.
#[derive(Debug, Clone)]
pub(crate) struct Parameter {
    pub(crate) place: Place,
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) shape: Shape,
    /// Whether it may be given more than once.
    pub(crate) repeated: bool,
}

/// The part of a request that contains a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Path,
    Query,
    Header,
}

/// The values of a parameter.
#[derive(Debug, Clone)]
pub(crate) enum Shape {
    Of(Schemas),
    /// A whole number from the first to the second one.
    Whole(u64, u64),
    /// Text with a number of characters from the first to the second one.
    Text(usize, usize),
    /// One of these names.
    OneOf(Vec<&'static str>),
    /// Text that matches a regular expression.
    Matching(&'static str),
}

impl Shape {
    pub(super) fn schema(&self, generator: &mut SchemaGenerator) -> Value {
        match self {
            Self::Of(of) => of(generator).to_value(),
            Self::Whole(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
            Self::Text(least, most) => json!({ "type": "string", "minLength": least, "maxLength": most }),
            Self::OneOf(values) => json!({ "type": "string", "enum": values }),
            Self::Matching(pattern) => json!({ "type": "string", "pattern": pattern }),
        }
    }

    /// What a value must be, if it is outside of the limits. Names and patterns are checked by the handlers.
    fn broken_limit(&self, value: &str) -> Option<String> {
        match self {
            Self::Whole(least, most) => {
                let fits = value.parse().is_ok_and(|number: u64| (*least..=*most).contains(&number));
                (!fits).then(|| format!("a whole number from {least} to {most}"))
            }
            Self::Text(least, most) => {
                let fits = (*least..=*most).contains(&value.chars().count());
                (!fits).then(|| format!("{least} to {most} characters"))
            }
            Self::Of(_) | Self::OneOf(_) | Self::Matching(_) => None,
        }
    }
}

/// The body of a request, as JSON or MessagePack, and perhaps YAML.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Body {
    pub(crate) schema: Schemas,
    pub(crate) required: bool,
    /// What it may be as YAML.
    pub(crate) yaml: &'static [Schemas],
}

/// A reply that is no failure of the API.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) about: &'static str,
    pub(crate) content: Content,
    /// Headers that the reply always has, with their meaning.
    pub(crate) headers: &'static [(&'static str, &'static str)],
}

/// What a reply contains.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Content {
    Nothing,
    Json(Schemas),
    /// A JSON object with any members.
    Object,
    Text(&'static str),
    /// Text, or JSON if the parameters ask for a part of it.
    TextOrJson(&'static str, Schemas),
    Bytes,
    /// A stream of server-sent events.
    Events,
}

pub(super) fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

impl Parameter {
    fn new(place: Place, name: &'static str, about: &'static str, shape: Shape) -> Self {
        Self { place, name, about, shape, repeated: false }
    }

    pub(super) fn path<T: JsonSchema>(name: &'static str, about: &'static str) -> Self {
        Self::new(Place::Path, name, about, Shape::Of(schema_of::<T>))
    }

    pub(super) fn query<T: JsonSchema>(name: &'static str, about: &'static str) -> Self {
        Self::new(Place::Query, name, about, Shape::Of(schema_of::<T>))
    }

    pub(super) fn one_of(
        name: &'static str,
        about: &'static str,
        values: impl IntoIterator<Item = &'static str>,
    ) -> Self {
        Self::new(Place::Query, name, about, Shape::OneOf(values.into_iter().collect()))
    }

    pub(super) fn whole(name: &'static str, about: &'static str, least: u64, most: u64) -> Self {
        Self::new(Place::Query, name, about, Shape::Whole(least, most))
    }

    pub(super) fn text(name: &'static str, about: &'static str, least: usize, most: usize) -> Self {
        Self::new(Place::Query, name, about, Shape::Text(least, most))
    }

    pub(super) fn matching(
        place: Place,
        name: &'static str,
        about: &'static str,
        pattern: &'static str,
    ) -> Self {
        Self::new(place, name, about, Shape::Matching(pattern))
    }

    /// Rejects a value that is outside of the limits.
    pub(crate) fn check(&self, value: &str) -> Result<(), Failure> {
        match self.shape.broken_limit(value) {
            None => Ok(()),
            Some(expected) => {
                let start: String = value.chars().take(80).collect();
                Err(Failure::invalid(format!("invalid {} {start:?}: expected {expected}", self.name)))
            }
        }
    }

    pub(super) fn repeated(self) -> Self {
        Self { repeated: true, ..self }
    }
}

impl Reply {
    pub(super) fn new(status: u16, about: &'static str, content: Content) -> Self {
        Self { status, about, content, headers: &[] }
    }

    pub(super) fn with(self, headers: &'static [(&'static str, &'static str)]) -> Self {
        Self { headers, ..self }
    }
}

impl Endpoint {
    pub(super) fn get<H: Handler<T, Api>, T: 'static>(
        path: &'static str,
        need: RouteNeed,
        id: &'static str,
        summary: &'static str,
        handler: H,
    ) -> Self {
        Self::new(Method::GET, path, need, (id, summary), routing::get(handler))
    }

    pub(super) fn post<H: Handler<T, Api>, T: 'static>(
        path: &'static str,
        need: RouteNeed,
        id: &'static str,
        summary: &'static str,
        handler: H,
    ) -> Self {
        let endpoint = Self::new(Method::POST, path, need, (id, summary), routing::post(handler));
        endpoint.fails(&[408, 413])
    }

    fn new(
        method: Method,
        path: &'static str,
        need: RouteNeed,
        (id, summary): (&'static str, &'static str),
        handler: MethodRouter<Api>,
    ) -> Self {
        let failures = vec![400, 429];
        let (parameters, replies) = (Vec::new(), Vec::new());
        Self { method, path, need, id, summary, parameters, body: None, replies, failures, handler }
    }

    pub(super) fn takes(mut self, parameters: impl IntoIterator<Item = Parameter>) -> Self {
        self.parameters.extend(parameters);
        self
    }

    pub(super) fn body<T: JsonSchema>(mut self, required: bool) -> Self {
        self.body = Some(Body { schema: schema_of::<T>, required, yaml: &[] });
        self
    }

    /// Accepts the required body `T` as YAML too, or only a part of it, `P`.
    pub(super) fn yaml_body<T: JsonSchema, P: JsonSchema>(mut self) -> Self {
        let yaml = &[schema_of::<T> as Schemas, schema_of::<P>];
        self.body = Some(Body { schema: schema_of::<T>, required: true, yaml });
        self
    }

    /// Replies with status 200 and `T` as JSON, or with 503 while the services do not answer.
    pub(super) fn answers<T: JsonSchema>(self, about: &'static str) -> Self {
        self.replies(Reply::new(200, about, Content::Json(schema_of::<T>))).fails(&[503])
    }

    pub(super) fn replies(mut self, reply: Reply) -> Self {
        self.replies.push(reply);
        self
    }

    pub(super) fn fails(mut self, statuses: &[u16]) -> Self {
        self.failures.extend(statuses);
        self
    }

    /// The query parameters that the route accepts.
    pub(crate) fn query(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter().filter(|parameter| parameter.place == Place::Query)
    }
}
