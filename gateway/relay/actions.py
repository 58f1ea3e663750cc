"""What right a request takes."""

from typing import Final

from gateway.relay.plan import Api

INFER: Final = "infer"
EMBED: Final = "embed"
_ACTIONS: Final = {Api.EMBEDDINGS: EMBED, Api.RERANK: EMBED}


def action_of(api: Api) -> str:
    """The action of RBAC that a request to this endpoint is."""
    return _ACTIONS.get(api, INFER)
