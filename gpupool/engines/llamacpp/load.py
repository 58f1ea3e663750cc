"""Load of a llama.cpp server from its `/metrics` (started with `--metrics`)."""

from gpupool.engines.base import EngineLoad, TokenCounters
from gpupool.engines.prometheus import count, gauge_sum, share


def parse_load(prometheus_text: str) -> EngineLoad:
    """Requests decoding and deferred. KV use only from builds that still report it (before mid-2025)."""
    return EngineLoad(
        running=count(gauge_sum(prometheus_text, "llamacpp:requests_processing")),
        waiting=count(gauge_sum(prometheus_text, "llamacpp:requests_deferred")),
        kv_used=share(gauge_sum(prometheus_text, "llamacpp:kv_cache_usage_ratio")),
    )


def parse_token_counters(prometheus_text: str) -> TokenCounters:
    """Input that was computed: what a slot still had of the prompt is left out. Embeddings are not counted."""
    return TokenCounters(
        input_tokens=count(gauge_sum(prometheus_text, "llamacpp:prompt_tokens_total")),
        output_tokens=count(gauge_sum(prometheus_text, "llamacpp:tokens_predicted_total")),
        input_without_cached=True,
    )
