"""Load of a Text Generation Inference server from its `/metrics`."""

from gpupool.engines.base import EngineLoad
from gpupool.engines.prometheus import count, gauge_sum


def parse_load(prometheus_text: str) -> EngineLoad:
    """The batch that is being decoded, and the queue; it does not tell of its KV cache."""
    return EngineLoad(
        running=count(gauge_sum(prometheus_text, "tgi_batch_current_size")),
        waiting=count(gauge_sum(prometheus_text, "tgi_queue_size")),
    )
