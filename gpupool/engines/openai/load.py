"""The OpenAI API says nothing about load."""

from gpupool.engines.base import EngineLoad


def parse_load(prometheus_text: str) -> EngineLoad:
    """Always unknown."""
    return EngineLoad()
