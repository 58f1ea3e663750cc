"""What the gateway says of itself and its models in the Open Inference Protocol, version 2; the same at both doors."""

from typing import Final

import msgspec

from gateway.relay.routes import OIP, OIP_LIVE

_NAME: Final = "gatehouse"
_VERSION: Final = "2"  # of the protocol: which release this is, is nobody's business without a key
_encode = msgspec.json.Encoder().encode


def about_server(path: str, unready: str | None) -> tuple[int, bytes]:
    """Status and body of `/v2`, `/v2/health/live` and `/v2/health/ready`; `unready`: why it does not serve now."""
    if path == OIP:
        return 200, _encode({"name": _NAME, "version": _VERSION, "extensions": []})
    if path == OIP_LIVE:
        return 200, _encode({"live": True})
    # The specification calls the member `live`, the servers `ready`.
    return (503 if unready else 200), _encode({"live": True, "ready": not unready})


def about_model(name: str, *, ready: bool) -> bytes:
    """Of a model that can be asked now: the answer to `.../ready`, or its metadata.

    Its tensors are not told: the engines that serve it know them, and need not agree.
    """
    return _encode({"name": name, "ready": True} if ready else {"name": name, "platform": _NAME})
