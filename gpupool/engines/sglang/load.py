"""Load of an SGLang server from its `/metrics` (started with `--enable-metrics`)."""

from gpupool.engines.base import EngineLoad
from gpupool.engines.prometheus import count, gauge_max, gauge_sum, share


def parse_load(prometheus_text: str) -> EngineLoad:
    """Summed over the data-parallel ranks; KV use is the fullest one's."""
    return EngineLoad(
        running=count(gauge_sum(prometheus_text, "sglang:num_running_reqs")),
        waiting=count(gauge_sum(prometheus_text, "sglang:num_queue_reqs")),
        kv_used=share(gauge_max(prometheus_text, "sglang:token_usage")),
    )
