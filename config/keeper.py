"""What keeps the limit counters true, as the drain and the operator's command run it."""

import threading

import redis

from config.environment import Environment
from config.wiring import SPOOL_FOLDER, build_drain
from gateway.services.limit_counters import LimitCounters
from gateway.services.limit_keeper import LimitKeeper


def build_keeper(environment: Environment, stop: threading.Event) -> LimitKeeper:
    """Runs on a thread of its own until `stop` is set. Needs VALKEY_STATE_URL."""
    assert environment.valkey_state_url is not None
    client = redis.Redis.from_url(
        environment.valkey_state_url, socket_timeout=5.0, socket_connect_timeout=2.0, decode_responses=True
    )
    recovery = build_drain(environment, stop)  # with a connection and a state of its own
    return LimitKeeper(
        LimitCounters(client, prefix=environment.valkey_prefix),
        spools=environment.var_dir / SPOOL_FOLDER,
        recover=recovery.recover,
        stop=stop,
    )
