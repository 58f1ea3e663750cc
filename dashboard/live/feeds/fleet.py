"""The channel `fleet`: the console's overview, its lists of nodes and instances, and a node's page, each second.

Scopes: none for the overview, `instances`, `nodes`, `node:UUID`. Lists get what changes by itself of every row, as
deltas; a page fills in the rows that it shows.
"""

from datetime import datetime

from dashboard.frames import build_console_frame
from dashboard.live.base import Encoder, Gone, Payload, Viewer, node_of
from dashboard.live.encoders import JsonEncoder, Rows, RowsEncoder
from dashboard.reads.fleet import read_instances, read_node, read_nodes
from tenants.policies.roles import Object


class FleetFeed:
    """For who may look at the pool."""

    name: str = "fleet"
    period_seconds: float = 1.0

    def may_watch(self, viewer: Viewer, scope: str) -> bool:
        known = scope in ("", "instances", "nodes") or node_of(scope) is not None
        return known and viewer.may_view(Object.POOL)

    def read(self, scope: str, *, now: datetime) -> object:
        """A constant number of queries, whatever the number of devices and instances. Raises Gone."""
        if scope == "instances":
            return Rows(read_instances(now))
        if scope == "nodes":
            return Rows(read_nodes())
        node_id = node_of(scope)
        if node_id is None:
            return build_console_frame(now=now)
        rows = read_node(node_id, now)
        if rows is None:
            raise Gone
        return Rows(rows)

    def encoder(self) -> Encoder:
        return FleetEncoder()


class FleetEncoder:
    """The overview whole where anything changed, for it is bounded; of lists the rows that did."""

    whole: bool = True

    def __init__(self) -> None:
        self._overview = JsonEncoder("fleet", "fleet.v1")
        self._rows = RowsEncoder("fleet", "fleet.v1")

    def keyframe(self, state: object, *, epoch: int, seq: int, at: datetime) -> Payload:
        return self._of(state).keyframe(state, epoch=epoch, seq=seq, at=at)

    def delta(self, state: object, *, epoch: int, seq: int, at: datetime) -> Payload | None:
        return self._of(state).delta(state, epoch=epoch, seq=seq, at=at)

    def _of(self, state: object) -> Encoder:
        return self._rows if isinstance(state, Rows) else self._overview
