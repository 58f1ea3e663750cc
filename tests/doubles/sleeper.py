"""An engine that sleeps, as the registry lists it; its process forgets who spoke to it when it sleeps."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from gpupool.engines import registry
from gpupool.engines.base import Capability, Engine, EngineArgs, LaunchPlan, LaunchRequest, device_environment
from gpupool.engines.plugins import Found, Room
from gpupool.engines.vllm.control import VllmControl
from gpupool.engines.vllm.load import parse_token_counters
from gpupool.engines.vllm.wire import VllmWire
from tests.doubles import sleeper_process

_CAPABILITIES = frozenset({Capability.CHAT, Capability.COMPLETIONS, Capability.LOAD, Capability.LAUNCH})


class SleeperLaunch:
    """Starts the process; with `never_loads` one that answers nothing."""

    address_in_use_exit_code: int | None = errno.EADDRINUSE
    artefact_head_bytes: int = 1

    def check_args(self, engine_args: EngineArgs) -> None:
        return None

    def check_artefact(self, head: bytes, size_bytes: int) -> None:
        return None

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        argv: tuple[str, ...] = (request.python, "-S", "-E", sleeper_process.__file__)
        argv += (str(request.port), request.served_name)
        if request.engine_args.get("never_loads"):
            argv = (request.python, "-c", "import time; time.sleep(600)")
        return LaunchPlan(argv=argv, port=request.port, slots=4, env=device_environment(request.devices))


def sleeper(name: str = "sleeper") -> Engine:
    """Its room. With the argument `sleep_mode` false it cannot sleep."""
    return Engine(
        name,
        "Sleeper",
        VllmWire(),
        SleeperLaunch(),
        VllmControl(),
        capabilities=_CAPABILITIES | {Capability.SLEEP},
        sleeps=lambda arguments: bool(arguments.get("sleep_mode", True)),
        counters=parse_token_counters,
        extra_ports=2,
    )


@contextmanager
def registered(*engines: Engine) -> Iterator[None]:
    """Within the block the registry knows these engines beside its own."""
    before = registry._registry
    found = before.found()
    fresh = registry.Registry()
    fresh._found = Found({**found.rooms, **{one.name: Room(one, "tests") for one in engines}}, found.broken)
    registry._registry = fresh
    try:
        yield
    finally:
        registry._registry = before
