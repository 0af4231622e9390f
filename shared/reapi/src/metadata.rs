//! Headers of requests and answers. Absent and malformed values are treated as not set.

use prost::Message as _;
use tonic::metadata::MetadataMap;

use crate::execution::RequestMetadata;

/// Name of the header that carries a [`RequestMetadata`].
pub const REQUEST_METADATA: &str = "build.bazel.remote.execution.v2.requestmetadata-bin";

/// Name of the header that repeats the resource name of a `ByteStream` call, for routers.
pub const RESOURCE_NAME: &str = "build.bazel.remote.execution.v2.resource-name";

/// Name of the header in which a server of Forebay reports the id of its store with its capabilities.
pub const STORE_ID: &str = "x-forebay-store-id";

/// Name of the header that requests a quota group other than that of the instance name.
pub const GROUP: &str = "x-forebay-group";

/// Name of the header with which a caller that reaches all trust zones names the one that a call is for.
pub const ZONE: &str = "x-forebay-zone";

/// Tools of remote-apis-sdks and Siso, which accept only the uncompressed size as the end of a compressed upload.
const COUNT_UNCOMPRESSED: [&str; 8] =
    ["siso", "re-client", "reclient", "reproxy", "rewrapper", "remote-apis-sdks", "remotetool", "casng"];

/// Reads the client's description of itself and its action.
pub fn request_metadata(headers: &MetadataMap) -> RequestMetadata {
    headers
        .get_bin(REQUEST_METADATA)
        .and_then(|value| value.to_bytes().ok())
        .and_then(|bytes| RequestMetadata::decode(bytes).ok())
        .unwrap_or_default()
}

/// Returns the name of the client tool, or "".
pub fn tool_name(metadata: &RequestMetadata) -> &str {
    metadata.tool_details.as_ref().map_or("", |tool| &tool.tool_name)
}

/// Whether the client expects the progress of compressed uploads in uncompressed bytes.
pub fn counts_uncompressed(metadata: &RequestMetadata) -> bool {
    let tool = tool_name(metadata);
    COUNT_UNCOMPRESSED.iter().any(|name| name.eq_ignore_ascii_case(tool))
}

/// Reads the resource name that the headers repeat.
pub fn resource_name(headers: &MetadataMap) -> Option<&str> {
    headers.get(RESOURCE_NAME).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use tonic::metadata::MetadataValue;

    use super::*;
    use crate::execution::ToolDetails;

    #[test]
    fn metadata_is_read_and_never_fails() {
        let mut headers = MetadataMap::new();
        assert_eq!(request_metadata(&headers), RequestMetadata::default());
        headers.insert_bin(REQUEST_METADATA, MetadataValue::from_bytes(b"\xff\xff\xff"));
        assert_eq!(request_metadata(&headers), RequestMetadata::default());
        let tool = ToolDetails { tool_name: "Siso".into(), tool_version: "1".into() };
        let said = RequestMetadata { tool_details: Some(tool), action_id: "a".into(), ..Default::default() };
        headers.insert_bin(REQUEST_METADATA, MetadataValue::from_bytes(&said.encode_to_vec()));
        assert_eq!(request_metadata(&headers), said);
        assert!(counts_uncompressed(&said));
        assert!(!counts_uncompressed(&RequestMetadata::default()));
    }
}
