"""vLLM's room: what only it says."""

import json

from gpupool.engines.vllm.wire import VllmWire


def test_one_warm_up_is_for_servers_that_generate_embed_and_rank() -> None:
    warm_up = VllmWire().warm_up("m")
    assert (warm_up.method, warm_up.path) == ("POST", "/invocations")
    body = json.loads(warm_up.body)
    assert body["model"] == "m"
    for members in ({"prompt", "max_tokens"}, {"input"}, {"query", "documents"}):
        assert members <= set(body)
    assert "messages" not in body  # a server for chats alone takes a prompt too, and that costs less
