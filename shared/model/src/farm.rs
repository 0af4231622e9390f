//! Which farm a bus is of, and where its gateways are.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Files that `forebay up` writes into its data folder. A folder that has all of them is the data of a farm, and is left out
/// where sources or inputs are copied.
pub const FARM_DATA_FILES: [&str; 2] = ["endpoints.json", "children.json"];

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id.
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
                let wrong = |_| $crate::ParseIdError::new($kind, text, "a UUID is expected");
                Uuid::try_parse(text.trim()).map(Self).map_err(wrong)
            }
        }
    };
}

uuid_id!(
    /// A farm, made with its first store.
    FarmId,
    "farm id"
);
uuid_id!(
    /// A store. It is kept in the store itself, so that the same store is known by any path or URL.
    StoreId,
    "store id"
);

/// Which farm a bus is of: JSON in the settings bucket under `farm`, written by compare-and-set. A service whose store is another
/// refuses to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FarmRecord {
    /// The farm.
    pub id: FarmId,
    /// Where output files, logs, jobs and models are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<KnownStore>,
    /// The content-addressable store and the action cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cas: Option<KnownStore>,
}

/// A store of a farm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KnownStore {
    /// Its URL, as the service that made it known had it.
    pub url: String,
    /// Its id.
    pub id: StoreId,
}

impl FarmRecord {
    /// A farm without stores.
    pub fn new() -> Self {
        Self { id: FarmId::generate(), store: None, cas: None }
    }
}

impl Default for FarmRecord {
    fn default() -> Self {
        Self::new()
    }
}

/// Where a gateway can be reached: its answer to `forebay.gateway.where`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct GatewayAddress {
    /// `grpc://HOST:PORT` of the Remote Execution API.
    pub grpc: String,
    /// `http://HOST:PORT` of the HTTP API.
    pub http: String,
}

/// Asks all gateways where they can be reached. To `forebay.gateway.where`, from workers and `forebay doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhereQuestion {
    /// The machine that asks: a gateway there answers with a loopback address where it has one.
    #[serde(default)]
    pub host: String,
}
