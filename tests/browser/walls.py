"""A made-up fleet on the live socket of a page: gpumem.v1 as the server sends it, without the server's part in it."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from dashboard.live.gpumem_codec import GpumemEncoder
from gpupool.policies.memory_wire import frame_of
from tests.browser.walk import signed_in as signed_in
from tests.dashboard.live.memory_examples import MovingFleet

if TYPE_CHECKING:
    from playwright.sync_api import Page, WebSocketRoute

TOLD_PERIOD_SECONDS: Final = 60.0
"""After three without a frame a page calls its figures stale, and later it begins anew. Here the next frame comes when
the test has its turn."""


class WallDouble:
    """Answers subscriptions of `gpumem` with a keyframe; `tick()` is another second of the fleet."""

    def __init__(self, page: "Page", fleet: MovingFleet) -> None:
        self.fleet = fleet
        self.page = page
        self.sent_bytes = 0
        self.frames = 0
        self._epoch, self._seq = 1, 0
        self._encoder = GpumemEncoder()
        self._socket: WebSocketRoute | None = None
        self._number = 0
        page.route_web_socket("**/ws/live", self._opened)
        page.route("**/gpu-memory/frame/**", lambda route: route.fulfill(json=self.frame()))
        page.route("**/gpu-memory/processes/**", lambda route: route.fulfill(body="<p>Processes</p>"))
        page.route("**/gpu-memory/history/**", lambda route: route.fulfill(json=self.history()))

    @property
    def seq(self) -> int:
        return self._seq

    def tick(self, seconds: float = 1.0) -> None:
        self.fleet.step(seconds)
        self._seq += 1
        payload = self._encoder.delta(self.fleet.tree(), epoch=self._epoch, seq=self._seq, at=_now())
        if payload is None:
            self._epoch += 1
            self._keyframe()
        else:
            self._send(payload)

    def keyframe(self) -> None:
        """Another one of the same topology."""
        self.fleet.step()
        self._seq += 1
        self._keyframe()

    def skip(self) -> None:
        """A frame that is lost on its way."""
        self.fleet.step()
        self._seq += 1
        self._encoder.delta(self.fleet.tree(), epoch=self._epoch, seq=self._seq, at=_now())

    def frame(self) -> dict[str, Any]:
        return frame_of(self.fleet.tree(), epoch=1, seq=1, at=_now())

    def history(self) -> dict[str, Any]:
        return {
            "device": "", "label": "", "size": 81_079, "step": 5, "start": int(_now().timestamp()) - 900,
            "series": dict(_series()),
        }  # fmt: skip

    def _opened(self, socket: "WebSocketRoute") -> None:
        self._socket = socket
        socket.on_message(lambda message: self._told(socket, message))

    def _told(self, socket: "WebSocketRoute", message: str | bytes) -> None:
        asked = json.loads(message)
        if asked.get("op") == "unsubscribe":
            self._number = 0
        if asked.get("op") != "subscribe" or asked["channel"] != "gpumem":
            return
        self._number = asked["n"]
        socket.send(json.dumps({"op": "subscribed", "n": self._number, "period": TOLD_PERIOD_SECONDS}))
        self._keyframe()

    def _keyframe(self) -> None:
        self._send(self._encoder.keyframe(self.fleet.tree(), epoch=self._epoch, seq=self._seq, at=_now()))

    def _send(self, payload: str | bytes) -> None:
        assert isinstance(payload, bytes)
        if self._socket is None or not self._number:
            return
        self.sent_bytes += len(payload) + 1
        self.frames += 1
        self._socket.send(bytes([self._number]) + payload)


def _now() -> datetime:
    return datetime.now(tz=UTC)


def _series() -> Iterator[tuple[str, list[int | None]]]:
    yield "weights", [44_000] * 180
    yield "kv_used", [8_000 + 40 * (at % 60) for at in range(180)]
    yield "kv_free", [16_000 - 40 * (at % 60) for at in range(180)]
    yield "activations", [2_400] * 180
    yield "lora", [160] * 180
    yield "free", [8_000] * 180


def told(page: "Page", what: str) -> Any:
    """Of what the wall's script says of itself."""
    return page.evaluate(f"gatehouseFlame.{what}")
