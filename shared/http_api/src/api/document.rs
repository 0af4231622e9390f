//! The OpenAPI document that describes the routes.

use std::collections::BTreeMap;

use model::{ApiError, allow_more};
use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::access::RouteNeed;

use super::endpoint::{Body, Content, Endpoint, Parameter, Place, Reply, Schemas, schema_of};

const SCHEMAS: &str = "#/components/schemas/";
/// Appended to the name of a type whose schema in requests differs from that in replies.
const OF_REQUESTS: &str = "Input";
const ABOUT: &str = "Builds over HTTP. Times are in milliseconds since 1970-01-01, positions are sequence numbers of the \
                     event stream. Later versions may add fields to replies. An unknown query parameter is an error.";

/// The OpenAPI 3.1 document of `endpoints`.
pub(crate) fn document(endpoints: &[Endpoint]) -> Value {
    let mut schemas = Components::new();
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for endpoint in endpoints {
        let operations = paths.entry(endpoint.path.replace("{*", "{")).or_default();
        operations.insert(endpoint.method.as_str().to_ascii_lowercase(), operation(endpoint, &mut schemas));
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Forebay",
            "version": env!("CARGO_PKG_VERSION"),
            "description": ABOUT,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
    });
    let components = schemas.finish(&mut document);
    if let Value::Object(members) = &mut document {
        let security = json!({
            "bearer": { "type": "http", "scheme": "bearer", "description": "An API key or a token (JWT)" },
            "key": { "type": "apiKey", "in": "header", "name": "x-forebay-api-key" },
        });
        members
            .insert("components".to_owned(), json!({ "schemas": components, "securitySchemes": security }));
    }
    document
}

fn operation(endpoint: &Endpoint, schemas: &mut Components) -> Value {
    let parameters: Vec<Value> =
        endpoint.parameters.iter().map(|parameter| parameter_object(parameter, schemas)).collect();
    let mut responses = Map::new();
    for reply in &endpoint.replies {
        responses.insert(reply.status.to_string(), response(reply, schemas));
    }
    let failed = schemas.reply(schema_of::<ApiError>);
    for status in &endpoint.failures {
        let failure = json!({ "description": meaning(*status), "content": { "application/json": { "schema": failed } } });
        responses.entry(status.to_string()).or_insert(failure);
    }
    // A farm without access rules needs no credentials.
    let security = match endpoint.need {
        RouteNeed::Nothing => json!([]),
        RouteNeed::Known
        | RouteNeed::InGroup(_)
        | RouteNeed::PageInGroup(_)
        | RouteNeed::OfBuilds(_)
        | RouteNeed::InAll(_)
        | RouteNeed::Right(_)
        | RouteNeed::Farm => json!([{}, { "bearer": [] }, { "key": [] }]),
    };
    if endpoint.need != RouteNeed::Nothing {
        for status in [401, 403] {
            let failure = json!({ "description": meaning(status), "content": { "application/json": { "schema": failed } } });
            responses.insert(status.to_string(), failure);
        }
    }
    let mut operation = json!({
        "operationId": endpoint.id,
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": responses,
        "security": security,
    });
    if let (Some(body), Value::Object(members)) = (endpoint.body, &mut operation) {
        members.insert("requestBody".to_owned(), request_body(body, schemas));
    }
    operation
}

fn parameter_object(parameter: &Parameter, schemas: &mut Components) -> Value {
    let schema = parameter.shape.schema(&mut schemas.replies);
    let schema = if parameter.repeated { json!({ "type": "array", "items": schema }) } else { schema };
    let place = match parameter.place {
        Place::Path => "path",
        Place::Query => "query",
        Place::Header => "header",
    };
    json!({
        "name": parameter.name,
        "in": place,
        "description": parameter.about,
        "required": parameter.place == Place::Path,
        "schema": schema,
    })
}

fn request_body(body: Body, schemas: &mut Components) -> Value {
    let schema = schemas.request(body.schema);
    let mut content = Map::new();
    for media_type in ["application/json", "application/msgpack"] {
        content.insert(media_type.to_owned(), json!({ "schema": schema }));
    }
    if !body.yaml.is_empty() {
        let any: Vec<Value> = body.yaml.iter().map(|of| schemas.request(*of)).collect();
        content.insert("application/yaml".to_owned(), json!({ "schema": { "anyOf": any } }));
    }
    json!({ "required": body.required, "content": content })
}

fn response(reply: &Reply, schemas: &mut Components) -> Value {
    let mut response = Map::new();
    response.insert("description".to_owned(), json!(reply.about));
    if !reply.headers.is_empty() {
        let headers = reply.headers.iter().map(|(name, about)| {
            let header = json!({ "description": about, "required": true, "schema": { "type": "string" } });
            ((*name).to_owned(), header)
        });
        response.insert("headers".to_owned(), headers.collect::<Map<_, _>>().into());
    }
    let text = || json!({ "type": "string" });
    let content = match reply.content {
        Content::Nothing => Vec::new(),
        Content::Json(of) => vec![("application/json", schemas.reply(of))],
        Content::Object => vec![("application/json", json!({ "type": "object" }))],
        Content::Text(media_type) => vec![(media_type, text())],
        Content::TextOrJson(media_type, of) => {
            vec![(media_type, text()), ("application/json", schemas.reply(of))]
        }
        Content::Bytes => vec![("application/octet-stream", json!({}))],
        Content::Events => vec![("text/event-stream", event(schemas))],
    };
    if !content.is_empty() {
        let content = content
            .into_iter()
            .map(|(media_type, schema)| (media_type.to_owned(), json!({ "schema": schema })));
        response.insert("content".to_owned(), content.collect::<Map<_, _>>().into());
    }
    response.into()
}

/// One server-sent event; a place in the queue has no id, because it is not stored.
fn event(schemas: &mut Components) -> Value {
    let line = schemas.reply(schema_of::<client::WatchLine>);
    let kinds = client::WatchKind::ALL.map(client::WatchKind::as_str);
    let data = json!({ "type": "string", "contentMediaType": "application/json", "contentSchema": line });
    json!({
        "type": "object",
        "properties": {
            "id": { "type": "string", "pattern": "^[0-9]+$" },
            "event": { "type": "string", "enum": kinds },
            "data": data,
        },
        "required": ["event", "data"],
    })
}

fn meaning(status: u16) -> &'static str {
    match status {
        400 => "The request is invalid: repeating it cannot succeed",
        401 => "The farm has access rules, and the credentials are missing or not accepted",
        403 => "The caller has no right to this",
        404 => "Not found, or no longer retained",
        408 => "The request body came too slowly",
        409 => "The id belongs to a build with different content, or the build has ended",
        413 => "The request body is too large",
        _ => "The services cannot answer now: retry later",
    }
}

/// The types of requests and replies. Requests refuse fields that they do not have; replies may get more.
struct Components {
    requests: SchemaGenerator,
    replies: SchemaGenerator,
}

impl Components {
    fn new() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        Self { requests: settings.clone().into_generator(), replies: settings.into_generator() }
    }

    fn request(&mut self, of: Schemas) -> Value {
        // Marked, so that `finish` recognises references to types of requests.
        let mut schema = of(&mut self.requests).to_value();
        rename(&mut schema, &|name| Some(format!("{name}{OF_REQUESTS}")));
        schema
    }

    fn reply(&mut self, of: Schemas) -> Value {
        let mut schema = of(&mut self.replies).to_value();
        allow_more(&mut schema);
        schema
    }

    /// All types. In `document`, a type of requests keeps its name if no type of replies with this name differs.
    fn finish(mut self, document: &mut Value) -> Map<String, Value> {
        let mut types = self.replies.take_definitions(true);
        types.values_mut().for_each(allow_more);
        let requests = self.requests.take_definitions(true);
        let differs = |name: &str, schema: &Value| types.get(name).is_some_and(|known| known != schema);
        let mut renamed: Vec<String> = requests
            .iter()
            .filter(|(name, schema)| differs(name, schema))
            .map(|(name, _)| name.clone())
            .collect();
        // What refers to a renamed type differs too, if replies have it.
        while let Some(next) = requests.iter().find(|(name, schema)| {
            let refers = |other: &String| mentions(schema, &format!("{SCHEMAS}{other}"));
            !renamed.contains(name) && types.contains_key(*name) && renamed.iter().any(refers)
        }) {
            renamed.push(next.0.clone());
        }
        let new_name =
            |name: &str| renamed.iter().any(|found| found == name).then(|| format!("{name}{OF_REQUESTS}"));
        for (name, mut schema) in requests {
            rename(&mut schema, &new_name);
            types.insert(new_name(&name).unwrap_or(name), schema);
        }
        let plain = |marked: &str| {
            let name = marked.strip_suffix(OF_REQUESTS)?;
            (!renamed.iter().any(|found| found == name)).then(|| name.to_owned())
        };
        rename(document, &plain);
        types
    }
}

fn mentions(schema: &Value, reference: &str) -> bool {
    match schema {
        Value::Object(members) => members.values().any(|value| mentions(value, reference)),
        Value::Array(items) => items.iter().any(|value| mentions(value, reference)),
        Value::String(text) => text == reference,
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Replaces the names of types in all references for which `new` returns another one.
fn rename(value: &mut Value, new: &dyn Fn(&str) -> Option<String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(text)) = members.get_mut("$ref")
                && let Some(name) = text.strip_prefix(SCHEMAS).and_then(new)
            {
                *text = format!("{SCHEMAS}{name}");
            }
            members.values_mut().for_each(|member| rename(member, new));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, new)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
