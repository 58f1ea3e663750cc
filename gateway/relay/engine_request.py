"""A request as one engine wants it: its name of the model, the end of answers, and its own API where need be."""

from typing import NamedTuple

from core.errors import NotSupported
from gateway.relay.failure import AttemptFailed
from gateway.relay.plan import Api, Endpoint, Work
from gateway.relay.rooms import find_room
from gateway.relay.splice import splice
from gpupool.engines.base import CallNotSupported, OpenAICall, Translation


class EngineRequest(NamedTuple):
    """`translation`: of the answer, where the engine does not speak OpenAI's words."""

    method: str
    path: str
    body: bytes
    translation: Translation | None = None


def translates(work: Work, endpoint: Endpoint) -> bool:
    """Whether the engine may have to be asked in words of its own."""
    room = find_room(endpoint.engine)
    return room is not None and work.api in room.translates


def shape_request(work: Work, endpoint: Endpoint) -> EngineRequest:
    """What to ask the endpoint's engine first. Raises AttemptFailed where it cannot do that."""
    parsed = work.parsed
    room = find_room(endpoint.engine)
    if work.most_tokens is None:
        body = splice(work.body, parsed, served_name=endpoint.served_name)
    else:
        member = "max_tokens" if room is None or work.api is not Api.CHAT else room.chat_cap_member
        body = splice(
            work.body,
            parsed,
            served_name=endpoint.served_name,
            most_tokens=work.most_tokens,
            cap_member=member,
        )
    if room is None or work.api not in room.translates:
        return EngineRequest("POST", work.path, body)
    call = OpenAICall(work.api, work.path, body, endpoint.served_name, parsed.stream)
    try:
        translation = room.wire.translate(call)
    except CallNotSupported as error:
        raise AttemptFailed(NotSupported(str(error)), retry=True) from error
    if translation is None:
        return EngineRequest("POST", work.path, body)
    wire = translation.request
    return EngineRequest(wire.method, wire.path, wire.body, translation)
