"""An engine that a package brings, from its installation to an answer at the door, and off and on again."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async

from gateway.relay import rooms as relay_rooms
from gateway.relay.plan import Endpoint
from gpupool import services
from gpupool.controller.prober import probe
from gpupool.controller.targets import target_of
from gpupool.engines import registry
from gpupool.engines.registry import Registry
from gpupool.models import Instance
from gpupool.selectors import list_engines, list_ready_endpoints
from tenants.actor import SYSTEM
from tests.doubles.engine import EngineDouble, Received, Wire, answers, head
from tests.doubles.plugin import UPSIDE_DOWN, Site
from tests.gateway.relay.door.house import DoorHouse, chat

pytestmark = pytest.mark.django_db(transaction=True)


async def _warp(request: Received, wire: Wire) -> None:
    """An engine with words of its own: the prompt, turned round."""
    if request.path == "/warp":
        await wire.send(head(200, ("Content-Length", str(len(request.body)))) + request.body[::-1])
    else:
        await answers({"object": "list", "data": [{"id": "served"}]})(request, wire)


def _routed() -> list[Endpoint]:
    return [
        Endpoint(found.instance_id, found.version_id, found.engine, found.host, found.port, "", found.served_name)
        for found in list_ready_endpoints()
    ]


@pytest.mark.shows("R126")
async def test_an_installed_engine_is_attached_asked_and_switched_without_a_change_here(
    open_door: Callable[..., Awaitable[DoorHouse]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Site(tmp_path, monkeypatch).install("warp-drive", "warp = upside_down:ROOM", module="upside_down", code=UPSIDE_DOWN)
    monkeypatch.setattr(registry, "_registry", Registry())
    monkeypatch.setattr(relay_rooms, "_found", {})
    (listed,) = [engine for engine in await sync_to_async(list_engines)() if engine.name == "warp"]
    assert (listed.protocol, listed.versions, listed.package, listed.enabled) == ("warp", ">=9", "warp-drive", True)

    async with EngineDouble(_warp) as engine:

        def attach() -> Instance:
            url = f"http://127.0.0.1:{engine.port}"
            return services.attach_engine(
                url, engine="warp", model_name="alias", served_name="served", actor=SYSTEM
            ).instance

        instance = await sync_to_async(attach)()
        verdict = await probe(target_of(instance))
        assert verdict.answered
        await sync_to_async(services.set_probed_state)(instance.pk, healthy=True, reason="", actor=SYSTEM)
        house = await open_door()
        house.pipeline.picker.endpoints = await sync_to_async(_routed)()
        answer = await house.ask(chat(model="alias"))
        assert answer.json["choices"][0]["message"]["content"] == "iH"
        assert answer.json["model"] == "alias"

        for enabled in (False, True):
            await sync_to_async(services.set_engine_enabled)("warp", enabled, actor=SYSTEM)
            assert len(await sync_to_async(_routed)()) == enabled
