"""The runtime that this process's views forward requests with; config.asgi puts it here at start-up."""

from typing import Protocol

from core.errors import Unavailable
from gateway.authentication import MachineAuthentication
from gateway.permissions import InferencePermission
from gateway.relay.carrier import Carrier
from gateway.relay.exchange import Exchange
from gateway.relay.memory import MemoryBudget
from gateway.relay.own_usage import OwnUsage
from gateway.relay.pipeline import Pipeline
from gateway.relay.plan import Ready
from gateway.relay.stored import StoredResponses
from gateway.relay.tuning.answers import Tuning


class DoorRuntime(Protocol):
    """What an inference view needs of the process it runs in."""

    @property
    def pipeline(self) -> Pipeline:
        """Decides about requests."""

    @property
    def authentication(self) -> MachineAuthentication:
        """The object that the pipeline uses too."""

    @property
    def permission(self) -> InferencePermission:
        """The object that the pipeline uses too."""

    @property
    def memory(self) -> MemoryBudget:
        """What requests' bodies are held within."""

    @property
    def stored(self) -> StoredResponses:
        """Answers about stored responses."""

    @property
    def usage(self) -> OwnUsage:
        """Answers about a key's own usage."""

    @property
    def tuning(self) -> Tuning:
        """Answers about files and fine-tuning jobs."""

    def exchange(self, ready: Ready) -> Exchange:
        """What carries one admitted request to an engine."""

    def carrier(self, ready: Ready) -> Carrier:
        """What brings one admitted request its answer: such an exchange, or a share in another's."""

    def ready(self) -> str | None:
        """None when requests can be served, else why not, in a sentence."""


_runtime: DoorRuntime | None = None


def install_runtime(runtime: DoorRuntime | None) -> None:
    """Set (or, with None, remove) the process's runtime."""
    global _runtime
    _runtime = runtime


def installed_runtime() -> DoorRuntime | None:
    """The process's runtime, None before start-up and after shutdown."""
    return _runtime


def current_runtime() -> DoorRuntime:
    """The process's runtime. Raises Unavailable before start-up and after shutdown."""
    if _runtime is None:
        raise Unavailable("This process does not serve inference.", retry_after_seconds=5)
    return _runtime
