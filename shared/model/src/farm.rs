//! Identity of the farm that a bus belongs to, and addresses of its gateways.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// File that `forebay up` writes into its data folder. A folder that has it is the data of a farm, which may run or not,
/// and is left out when sources or inputs are copied.
pub const FARM_DATA_MARK: &str = ".forebay-data";

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Generates a new random id.
            pub fn generate() -> Self {
                Self(Uuid::new_v4())
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::ParseIdError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let wrong = |_| $crate::ParseIdError::new($kind, text, "expected a UUID");
                Uuid::try_parse(text.trim()).map(Self).map_err(wrong)
            }
        }
    };
}

uuid_id!(
    /// Id of a farm, generated with its first store.
    FarmId,
    "farm id"
);
uuid_id!(
    /// Id of a store, kept in the store itself, so that the same store is recognised under any path or URL.
    StoreId,
    "store id"
);

/// Identity of the farm that a bus belongs to: JSON in the settings bucket under `farm`, written by compare-and-set. A
/// service that is configured with a different store refuses to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FarmRecord {
    /// Id of the farm.
    pub id: FarmId,
    /// Store of output files, logs, jobs and models in earlier versions; absent once its blobs were moved to `cas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<KnownStore>,
    /// Store of all blobs and of the action cache; absent until a service registers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cas: Option<KnownStore>,
}

/// A store that belongs to a farm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KnownStore {
    /// URL of the store as configured in the service that registered it.
    pub url: String,
    /// Id of the store.
    pub id: StoreId,
}

impl FarmRecord {
    /// Creates a farm without stores.
    pub fn new() -> Self {
        Self { id: FarmId::generate(), store: None, cas: None }
    }
}

impl Default for FarmRecord {
    fn default() -> Self {
        Self::new()
    }
}

/// Addresses of a gateway: its reply on `forebay.gateway.where`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct GatewayAddress {
    /// Address of the Remote Execution API: `grpc://HOST:PORT`.
    pub grpc: String,
    /// Address of the HTTP API: `http://HOST:PORT`.
    pub http: String,
}

/// Asks all gateways for their addresses. Sent to `forebay.gateway.where` by workers and `forebay doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhereQuestion {
    /// Host name of the sender: a gateway on the same machine replies with a loopback address if it has one.
    #[serde(default)]
    pub host: String,
}

/// A trace that is worth keeping, although it was not selected at its start. Plain message to all processes that trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeepTrace {
    /// Id of the trace: 32 hexadecimal digits.
    pub trace: String,
}
