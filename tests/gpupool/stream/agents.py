"""An agent as the web process meets it, which says what a test has it say."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import msgspec
from asgiref.testing import ApplicationCommunicator
from channels.routing import URLRouter

from gpupool.models import Node
from gpupool.stream.messages import STREAM_PATH, Desired, Observed, ServerMessage, Welcome
from gpupool.stream.routing import websocket_urlpatterns
from tests.gpupool.leases.contract import eventually
from tests.gpupool.pool import a_device, a_hello

_application = URLRouter(websocket_urlpatterns)
_decoder = msgspec.json.Decoder(ServerMessage)


class Agent:
    """Speaks the protocol over one stream."""

    def __init__(self, token: str) -> None:
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        scope = {"type": "websocket", "path": STREAM_PATH, "query_string": b"", "headers": headers, "subprotocols": []}
        self._socket: Any = ApplicationCommunicator(_application, scope)  # type: ignore[no-untyped-call]  # asgiref's tests have no types

    async def connect(self) -> bool:
        await self._socket.send_input({"type": "websocket.connect"})
        answer = await self._socket.receive_output(30)
        return bool(answer["type"] == "websocket.accept")

    async def say(self, message: Any) -> None:
        await self.say_text(msgspec.json.encode(message).decode())

    async def say_text(self, text: str) -> None:
        await self._socket.send_input({"type": "websocket.receive", "text": text})

    async def hear(self) -> Any:
        output = await self._socket.receive_output(30)
        assert output["type"] == "websocket.send"
        return _decoder.decode(output["text"])

    async def hear_other_than(self, *told: Desired) -> Any:
        """The next message that is none of these over again: a desired state may be repeated at any time."""
        while True:
            message = await self.hear()
            if message not in told:
                return message

    async def hear_close(self, *told: Desired) -> int:
        """What it is closed with: before that these may be told over again, and nothing else is said."""
        while (output := await self._socket.receive_output(30))["type"] == "websocket.send":
            assert _decoder.decode(output["text"]) in told
        assert output["type"] == "websocket.close"
        return int(output["code"])

    async def all_heard(self) -> None:
        """Whatever was said has been taken."""

        async def empty() -> bool:
            return bool(self._socket.input_queue.empty())

        await eventually(empty)

    async def leave(self) -> None:
        await self._socket.send_input({"type": "websocket.disconnect", "code": 1005})
        await self._socket.wait(30)


Connect = Callable[[str], Awaitable[Agent]]


async def the_node() -> Node:
    return await Node.objects.aget(name="node-1")


async def begin(agent: Agent) -> Desired:
    await agent.say(a_hello("node-1", a_device("gpu-0")))
    assert isinstance(await agent.hear(), Welcome)
    desired = await agent.hear()
    assert isinstance(desired, Desired)
    return desired


def a_report(sequence: int, **more: Any) -> Observed:
    return Observed(sequence=sequence, devices=[a_device("gpu-0")], instances=[], **more)


def session_of(node: Node) -> UUID:
    assert node.session_id is not None
    return node.session_id
