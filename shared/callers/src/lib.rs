//! Who calls a gateway: verifies API keys, tokens (JWT) and client certificates, and finds the rights of the caller in the
//! access rules of a file.
//!
//! [`Callers`] answers for HTTP and gRPC alike; [`Guarded`] is the layer of gRPC servers. [`policy::access`]
//! decides what these rights allow.

mod build_token;
mod caller;
mod callers;
mod credential;
mod fetched;
mod file;
mod grpc;
mod issuer;
mod jwk;
mod key;
mod lapsing;
mod limits;
mod place;
mod provider;
mod refusal;
mod sealing;
mod session;
mod shares;
mod sign_in;
mod slowed;
#[cfg(test)]
mod testing;
mod token;

pub use build_token::BuildTokens;
pub use caller::Caller;
pub use callers::{CallerSettings, Callers};
pub use credential::{Credentials, Offered};
pub use file::{AccessFileError, KeyEntry};
pub use grpc::{Guarded, denied, offered};
pub use key::{ApiKey, KeyHash};
pub use lapsing::{Lapsing, LapsingRequest};
pub use limits::Watching;
pub use place::Place;
pub use refusal::Refusal;
pub use session::Sessions;
pub use shares::Shares;
pub use sign_in::{ATTEMPT_LIFETIME, Answer, Begun, SignIn, SignInError, SignedIn};
pub use slowed::Slowed;
pub use token::token_expiry;
