"""`/v1/realtime` at the web process: the relay's websocket application, on this process's runtime."""

from core.clock import SystemClock
from core.errors import GatehouseError
from gateway.api.runtime import current_runtime
from gateway.relay.exchange import Exchange
from gateway.relay.plan import Decision, Ready, Rejected, SlimRequest
from gateway.relay.realtime.app import RealtimeApp
from gateway.relay.realtime.connection import RealtimeLimits


class _InstalledPipeline:
    """The runtime's pipeline, as long as there is one."""

    async def prepare(self, request: SlimRequest) -> Decision:
        try:
            pipeline = current_runtime().pipeline
        except GatehouseError as error:
            return Rejected(error)
        return await pipeline.prepare(request)

    async def models(self, request: SlimRequest) -> bytes:
        return await current_runtime().pipeline.models(request)


def _carry(ready: Ready) -> Exchange:
    return current_runtime().exchange(ready)


def build_realtime(limits: RealtimeLimits) -> RealtimeApp:
    """The application; before start-up and after shutdown it refuses everybody with 503."""
    return RealtimeApp(_InstalledPipeline(), _carry, SystemClock(), limits, lambda: current_runtime().memory)
