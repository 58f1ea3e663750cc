"""Load of a Text Generation Inference server from its `/metrics`."""

from gpupool.engines.base import EngineLoad, TokenCounters
from gpupool.engines.prometheus import count, gauge_sum


def parse_load(prometheus_text: str) -> EngineLoad:
    """The batch that is being decoded, and the queue; it does not tell of its KV cache."""
    return EngineLoad(
        running=count(gauge_sum(prometheus_text, "tgi_batch_current_size")),
        waiting=count(gauge_sum(prometheus_text, "tgi_queue_size")),
    )


def parse_token_counters(prometheus_text: str) -> TokenCounters:
    """Sums of histograms, which a request enters when it has ended well: one that was broken off is not in them."""
    return TokenCounters(
        input_tokens=count(gauge_sum(prometheus_text, "tgi_request_input_length_sum")),
        output_tokens=count(gauge_sum(prometheus_text, "tgi_request_generated_tokens_sum")),
    )
