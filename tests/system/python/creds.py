"""A user with a JWT: checks who signed it, publishes a build, sees its event, then waits until it is refused.

creds.py URL CREDS INBOX GROUP SERVICE_CREDS SERVICE_INBOX
"""

import asyncio
import base64
import json
import sys

import nacl.signing
import nats


def decoded(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def verified(token):
    """The claims of a JWT whose signature is that of its issuer."""
    head, claims, signature = token.split(".")
    assert json.loads(decoded(head)) == {"typ": "JWT", "alg": "ed25519-nkey"}
    issuer = json.loads(decoded(claims))["iss"]
    # A kind, the key and a checksum of two bytes.
    public = base64.b32decode(issuer + "=" * (-len(issuer) % 8))[1:-2]
    nacl.signing.VerifyKey(public).verify(f"{head}.{claims}".encode(), decoded(signature))
    return json.loads(decoded(claims))


async def main():
    url, creds, inbox, group, service_creds, service_inbox = sys.argv[1:]
    with open(creds) as file:
        token = file.read().split("-----BEGIN NATS USER JWT-----")[1].split()[0]
    claims = verified(token)
    assert claims["sub"].startswith("U") and claims["iss"].startswith("A"), claims
    assert claims["exp"] > claims["iat"], claims
    closed = asyncio.Event()

    async def lost():
        closed.set()

    bus = await nats.connect(
        url,
        user_credentials=creds,
        inbox_prefix=inbox.encode(),
        disconnected_cb=lost,
        allow_reconnect=False,
    )
    service = await nats.connect(url, user_credentials=service_creds, inbox_prefix=service_inbox.encode())
    events = await bus.subscribe(f"forebay.build.live.{group}.>")
    await bus.flush()
    answer = await bus.request(f"forebay.build.request.{group}.batch", b'{"command":["true"]}', timeout=5)
    assert json.loads(answer.data)["stream"] == "FOREBAY_REQUESTS", answer.data
    await service.request(f"forebay.build.event.{group}.x.lifecycle", b"queued", timeout=5)
    event = await events.next_msg(timeout=5)
    assert event.data == b"queued", event
    await service.close()
    print("seen", flush=True)
    await asyncio.wait_for(closed.wait(), 60)
    print("closed", flush=True)


asyncio.run(main())
