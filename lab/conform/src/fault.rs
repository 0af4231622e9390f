//! A proxy that adds one fault to a correct server: it verifies that the checks detect faults.
//!
//! Each fault occurs in servers in use. Where a proxy cannot make an executor misbehave, it changes the answer to
//! look as if it had.

mod blobs;
mod bytes;
mod operations;
mod services;
mod upstream;

use std::{net::SocketAddr, sync::Arc};

use reapi::{
    asset::{fetch_server::FetchServer, push_server::PushServer},
    bytestream::byte_stream_server::ByteStreamServer,
    execution::{
        action_cache_server::ActionCacheServer, capabilities_server::CapabilitiesServer,
        content_addressable_storage_server::ContentAddressableStorageServer,
        execution_server::ExecutionServer,
    },
    logstream::log_stream_service_server::LogStreamServiceServer,
    longrunning::operations_server::OperationsServer,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Endpoint, Server, Uri};

use crate::client::MESSAGE_MAX;
use upstream::Upstream;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $id:literal),+ $(,)?) => {
        /// One way in which a server is wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Fault {
            $($(#[$doc])* $name),+
        }

        impl Fault {
            /// All faults, in the order of their checks.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Returns the number of the check that must fail.
            pub fn caught_by(self) -> u16 {
                match self {
                    $(Self::$name => $id),+
                }
            }
        }
    };
}

faults! {
    /// Priority ranges are announced from 0 upwards.
    PrioritiesFromZero = 6,
    /// Reads with a limit are not implemented.
    NoReadLimit = 27,
    /// Compressed reads ignore the offset.
    CompressedOffsetIgnored = 29,
    /// A write with a wrong hash is accepted, and can be read.
    WrongHashAccepted = 34,
    /// A compressed write commits -1 bytes.
    CompressedSizeUnknown = 40,
    /// The call `QueryWriteStatus` is not implemented.
    NoWriteStatus = 42,
    /// Compressors of batch uploads are ignored.
    CompressorIgnored = 52,
    /// The tree of an absent root is empty.
    AbsentTreeEmpty = 57,
    /// A tree with an absent directory is an error.
    TreeEndsAtAbsent = 58,
    /// Trees are returned in one page.
    PageSizeIgnored = 59,
    /// A failure is the operation's error.
    OperationError = 84,
    /// A missing blob is `NOT_FOUND`.
    MissingIsNotFound = 85,
    /// Of several missing blobs only the first is named.
    FirstMissingOnly = 87,
    /// An action that no executor can run waits forever.
    UnknownPropertyWaits = 91,
    /// Larger priority values start sooner.
    PriorityInverted = 98,
    /// Results of `do_not_cache` actions are cached.
    DoNotCacheIgnored = 99,
    /// The flag `skip_cache_lookup` is ignored.
    SkipCacheLookupIgnored = 100,
    /// The call `CancelOperation` is not implemented.
    NoCancel = 111,
    /// The call `GetOperation` and related calls are not implemented.
    NoOperations = 112,
    /// The result of a timed-out action lacks its output.
    TimeoutWithoutOutput = 114,
    /// Every signal is reported as exit code 9.
    SignalIsNine = 117,
    /// The output of a running action cannot be read.
    NoLiveOutput = 119,
    /// Responses have no server logs.
    NoServerLogs = 121,
    /// The parent directories of outputs are not created.
    NoParents = 126,
    /// Output symlinks are reported as files.
    SymlinksFollowed = 130,
    /// Absolute output symlinks are reported as files.
    AbsoluteSymlinksFollowed = 131,
    /// Output directories are reported as Trees only.
    TreesOnly = 136,
}

/// The proxy could not be started.
#[derive(Debug, thiserror::Error)]
#[error("the proxy cannot listen on the loopback interface: {0}")]
pub struct ProxyError(#[from] std::io::Error);

/// A running proxy; dropping the handle stops it.
#[derive(Debug)]
pub struct ProxyHandle {
    /// URL of the proxy: `grpc://HOST:PORT`.
    pub endpoint: String,
    serving: JoinHandle<()>,
}

impl Drop for ProxyHandle {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Starts a proxy that adds `fault` to the server `upstream`.
pub async fn proxy(upstream: Uri, fault: Fault) -> Result<ProxyHandle, ProxyError> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let endpoint = format!("grpc://{}", listener.local_addr()?);
    let channel = Endpoint::from(upstream).tcp_nodelay(true).connect_lazy();
    let shared = Arc::new(Upstream::new(channel, fault));
    macro_rules! served {
        ($server:ident) => {
            $server::from_arc(Arc::clone(&shared))
                .max_decoding_message_size(MESSAGE_MAX)
                .max_encoding_message_size(MESSAGE_MAX)
        };
    }
    let router = Server::builder()
        .tcp_nodelay(true)
        .add_service(served!(CapabilitiesServer))
        .add_service(served!(ContentAddressableStorageServer))
        .add_service(served!(ByteStreamServer))
        .add_service(served!(ActionCacheServer))
        .add_service(served!(ExecutionServer))
        .add_service(served!(OperationsServer))
        .add_service(served!(LogStreamServiceServer))
        .add_service(served!(FetchServer))
        .add_service(served!(PushServer));
    let serving = tokio::spawn(async move {
        // The proxy stops with its handle, which cannot receive an error.
        let _ = router.serve_with_incoming(TcpListenerStream::new(listener)).await;
    });
    Ok(ProxyHandle { endpoint, serving })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_fault_has_a_check_of_its_own() {
        let checks: BTreeSet<u16> = Fault::ALL.iter().map(|fault| fault.caught_by()).collect();
        assert_eq!(checks.len(), Fault::ALL.len());
        let all: BTreeSet<u16> = crate::statements().iter().map(|statement| statement.id).collect();
        assert!(checks.is_subset(&all));
    }
}
