"""Load of an SGLang server from its `/metrics` (started with `--enable-metrics`)."""

from gpupool.engines.base import EngineLoad, TokenCounters
from gpupool.engines.prometheus import count, gauge_max, gauge_sum, share


def parse_load(prometheus_text: str) -> EngineLoad:
    """Summed over the data-parallel ranks; KV use is the fullest one's."""
    return EngineLoad(
        running=count(gauge_sum(prometheus_text, "sglang:num_running_reqs")),
        waiting=count(gauge_sum(prometheus_text, "sglang:num_queue_reqs")),
        kv_used=share(gauge_max(prometheus_text, "sglang:token_usage")),
    )


def parse_token_counters(prometheus_text: str) -> TokenCounters:
    """All when a request has finished: one that was broken off may not be among them."""
    return TokenCounters(
        input_tokens=count(gauge_sum(prometheus_text, "sglang:prompt_tokens_total")),
        output_tokens=count(gauge_sum(prometheus_text, "sglang:generation_tokens_total")),
        cached_tokens=count(gauge_sum(prometheus_text, "sglang:cached_tokens_total")),
        started_at=gauge_max(prometheus_text, "process_start_time_seconds"),
    )
