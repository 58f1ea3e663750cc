"""Token counters out of the engines' own metrics."""

import pytest

from gpupool.engines.base import TokenCounters
from gpupool.engines.registry import get_engine

VLLM = """# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 9302.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 98.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 1.8461e+04
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 4096.0
process_start_time_seconds 1.76e+09
"""
SGLANG = """sglang:prompt_tokens_total{model_name="m"} 8.128902e+06
sglang:generation_tokens_total{model_name="m"} 7.557572e+06
sglang:cached_tokens_total{cache_source="device",model_name="m"} 100
sglang:cached_tokens_total{cache_source="host",model_name="m"} 20
"""
LLAMACPP = """# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 41
# TYPE llamacpp:prompt_seconds_total counter
llamacpp:prompt_seconds_total 0.1
llamacpp:tokens_predicted_total 17
llamacpp:tokens_predicted_seconds_total 0.5
"""
TGI = """tgi_request_input_length_sum 300
tgi_request_input_length_count 3
tgi_request_generated_tokens_sum 45
tgi_request_generated_tokens_count 3
"""


@pytest.mark.parametrize(
    ("engine", "text", "said"),
    [
        ("vllm", VLLM, TokenCounters(9400, 18461, 4096, False, 1.76e9)),
        ("sglang", SGLANG, TokenCounters(8128902, 7557572, 120, False, None)),
        ("sglang-generate", SGLANG, TokenCounters(8128902, 7557572, 120, False, None)),
        ("llamacpp", LLAMACPP, TokenCounters(41, 17, None, True, None)),
        ("tgi", TGI, TokenCounters(300, 45, None, False, None)),
        ("tgi-generate", TGI, TokenCounters(300, 45, None, False, None)),
        ("vllm", "nothing of this kind", TokenCounters()),
    ],
)
def test_counters_are_summed_over_replicas(engine: str, text: str, said: TokenCounters) -> None:
    counters = get_engine(engine).counters
    assert counters is not None
    assert counters(text) == said


@pytest.mark.parametrize("engine", ["ollama", "openai", "kserve", "vllm-generate"])
def test_engines_without_metrics_say_nothing(engine: str) -> None:
    assert get_engine(engine).counters is None
