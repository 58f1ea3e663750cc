"""Load of a vLLM server from its `/metrics`; names changed between its engines V0 and V1."""

from gpupool.engines.base import EngineLoad, TokenCounters
from gpupool.engines.prometheus import count, gauge_max, gauge_sum, share


def parse_load(prometheus_text: str) -> EngineLoad:
    """Summed over the engine's replicas; KV use is the fullest replica's, for that one will refuse first."""
    return EngineLoad(
        running=count(gauge_sum(prometheus_text, "vllm:num_requests_running")),
        waiting=count(gauge_sum(prometheus_text, "vllm:num_requests_waiting")),
        kv_used=share(gauge_max(prometheus_text, "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")),
    )


def parse_token_counters(prometheus_text: str) -> TokenCounters:
    """Input when its prefill is done, cached parts included; output as it is made, of broken-off requests too.

    A request that was preempted and computed again counts once.
    """
    return TokenCounters(
        input_tokens=count(gauge_sum(prometheus_text, "vllm:prompt_tokens_total")),
        output_tokens=count(gauge_sum(prometheus_text, "vllm:generation_tokens_total")),
        cached_tokens=count(gauge_sum(prometheus_text, "vllm:prefix_cache_hits_total")),
        started_at=gauge_max(prometheus_text, "process_start_time_seconds"),
    )
