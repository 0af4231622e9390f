//! Actions that ask for the network of their executor's machine.

use std::net::TcpListener;

use farm::{Builder, Farm};
use reapi::execution::{Action, ExecuteResponse, Platform, platform::Property};
use remote::{Remote, RemoteError};

use crate::acting::{self, ACTING, SHA256};

fn builder() -> Builder {
    Farm::builder().only(&ACTING)
}

/// An action that connects to this port of the machine and says whether that works.
async fn connecting(
    remote: &Remote,
    listener: &TcpListener,
    property: Option<(&str, &str)>,
) -> Result<ExecuteResponse, RemoteError> {
    let port = listener.local_addr().unwrap().port();
    let script = format!(
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}))' 2>/dev/null && \
         echo reached || echo unreachable; cat /etc/resolv.conf >/dev/null && echo resolves"
    );
    let properties = property.map(|(name, value)| Property { name: name.into(), value: value.into() });
    let platform = Platform { properties: properties.into_iter().collect() };
    let action = Action { platform: Some(platform), ..Action::default() };
    let action = acting::upload_as(remote, &acting::sh(&script), action, &SHA256.empty()).await;
    remote.execute(&action, false, 0, |_, _| {}).await.map(|executed| executed.response)
}

#[tokio::test]
async fn only_an_action_that_asks_reaches_the_network_where_the_executor_allows_it() {
    let farm = builder().env("FOREBAY_ACTION_NETWORK", "true").start().await;
    let remote = acting::remote(&farm).await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for (property, reaches) in [
        (Some(("network", "on")), true),
        (None, false),
        (Some(("dockerNetwork", "bridge")), true),
        (Some(("network", "off")), false),
    ] {
        let response = connecting(&remote, &listener, property).await.unwrap();
        let said = acting::stdout(&remote, &response).await;
        let wanted = if reaches { "reached\nresolves\n" } else { "unreachable\nresolves\n" };
        assert_eq!(said, wanted, "{property:?}");
    }
}

#[tokio::test]
async fn an_action_that_asks_is_refused_at_once_where_no_executor_allows_it() {
    let farm = builder().start().await;
    let remote = acting::remote(&farm).await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for property in [("network", "on"), ("dockerNetwork", "standard")] {
        let error = connecting(&remote, &listener, Some(property)).await.unwrap_err();
        let RemoteError::Refused { status, .. } = error else { panic!("{error:?}") };
        assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status:?}");
        for part in ["\"network\"", "action_network"] {
            assert!(status.message().contains(part), "{part}: {}", status.message());
        }
    }
    let response = connecting(&remote, &listener, Some(("network", "off"))).await.unwrap();
    assert_eq!(acting::stdout(&remote, &response).await, "unreachable\nresolves\n");
    assert_eq!(acting::histories(&farm).await.len(), 1, "a refused action leaves no record");
}
