//! The HTTP API as a table: what each route is named, takes and answers. The router and the OpenAPI document are both
//! made from this table.

mod document;
mod endpoint;
mod endpoints;

pub(crate) use document::document;
pub(crate) use endpoint::Parameter;
pub(crate) use endpoints::all;
