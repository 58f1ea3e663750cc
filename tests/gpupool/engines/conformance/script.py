"""The exchanges, engine by engine, written down from the engines' documents and sources."""

import json
from typing import Any, Final

from gateway.relay.plan import Api
from tests.gpupool.engines.conformance.exchange import SERVED, Exchange, Seen, Told

USAGE: Final = {"include_usage": True}
HELLO: Final = "Grüße, 世界 🌍"
CHAT: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": "Hi"}]}
PROMPT: Final[dict[str, Any]] = {"prompt": "Once", "max_tokens": 8, "temperature": 0.5, "stop": ["\n\n"], "seed": 7}
TOOL: Final = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def sse(*bodies: Any, end: bytes = b"\n\n", done: bool = True, escape: bool = False) -> bytes:
    """Events, as servers send them."""
    datas = [json.dumps(body, ensure_ascii=escape).encode() for body in bodies] + ([b"[DONE]"] if done else [])
    return b"".join(b"data: " + data + end for data in datas)


def lines(*bodies: Any, end: bytes = b"\n", escape: bool = False) -> bytes:
    return b"".join(json.dumps(body, ensure_ascii=escape).encode() + end for body in bodies)


def whole(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _openai(engine: str) -> list[Exchange]:
    """What every engine that speaks OpenAI's words is asked and answers, with members that nobody here knows."""
    own = {"chat_template_kwargs": {"enable_thinking": False}, "lora": [{"id": 0, "scale": 1.0}], "tools": [TOOL]}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": SERVED}
        return base | {"choices": [choice]}

    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"ci'}}
    more = {"index": 0, "function": {"arguments": 'ty":"Bern"}'}}
    last = chunk({}) | {"choices": [], "usage": _usage(7, 3)}
    message = {"role": "assistant", "content": HELLO, "reasoning_content": "hm"}
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": SERVED, "usage": _usage(7, 3)}
    text = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": SERVED, "usage": _usage(2, 4)}
    return [
        Exchange(
            "chat", engine, Api.CHAT, CHAT | own,
            (Seen("/v1/chat/completions", {"model": SERVED, **CHAT, **own}),),
            (whole(answer | {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}),),
            Told(HELLO, "hm", finish=["stop"], usage=(7, 3)),
        ),
        Exchange(
            "chat-stream", engine, Api.CHAT, CHAT | own,
            (Seen("/v1/chat/completions", {"model": SERVED, **CHAT, **own, "stream": True, "stream_options": USAGE}),),
            (sse(chunk({"role": "assistant", "content": ""}), chunk({"content": "Grüße, 世"}),
                 chunk({"content": "界 🌍"}), chunk({}, "stop"), last),),
            Told(HELLO, finish=["stop"], usage=(7, 3)), stream=True,
        ),
        Exchange(
            "tool-stream", engine, Api.CHAT, CHAT | own,
            (Seen("/v1/chat/completions", {"model": SERVED, **CHAT, **own, "stream": True, "stream_options": USAGE}),),
            (sse(chunk({"role": "assistant", "content": None}), chunk({"tool_calls": [call]}),
                 chunk({"tool_calls": [more]}), chunk({}, "tool_calls"), last, end=b"\r\n\r\n"),),
            Told(calls=[("weather", {"city": "Bern"})], finish=["tool_calls"], usage=(7, 3)), stream=True,
        ),
        Exchange(
            "completion", engine, Api.COMPLETIONS, PROMPT | {"n": 2},
            (Seen("/v1/completions", {"model": SERVED, **PROMPT, "n": 2}),),
            (whole(text | {"choices": [{"index": 0, "text": HELLO, "finish_reason": "stop"},
                                       {"index": 1, "text": "b", "finish_reason": "length"}]}),),
            Told(HELLO, finish=["stop", "length"], usage=(2, 4), others=["b"]),
        ),
        Exchange(
            "error-stream", engine, Api.CHAT, CHAT,
            (Seen("/v1/chat/completions", {"model": SERVED, **CHAT, "stream": True, "stream_options": USAGE}),),
            (sse(chunk({"role": "assistant"}), chunk({"content": "Hel"}),
                 {"error": {"message": "out of memory", "type": "server_error", "code": 500}}, done=False),),
            Told("Hel", error="out of memory"), stream=True,
        ),
    ]  # fmt: skip


def _embeddings(engine: str) -> Exchange:
    data = [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    asks = {"input": ["a b"], "dimensions": 2}
    answer = {"object": "list", "model": SERVED, "data": data, "usage": usage}
    return Exchange(
        "embeddings", engine, Api.EMBEDDINGS, asks, (Seen("/v1/embeddings", {"model": SERVED, **asks}),),
        (whole(answer),), {"data": data, "usage": usage},
    )  # fmt: skip


def _rerank(engine: str) -> Exchange:
    asks = {"query": "q", "documents": ["a", "b"], "top_n": 2}
    results: list[dict[str, Any]] = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.25}]
    usage = {"prompt_tokens": 5, "total_tokens": 5}
    answer: Any = {"model": SERVED, "results": results, "usage": usage}
    if engine == "sglang":
        answer = [
            {"score": 0.9, "document": "b", "index": 1, "meta_info": {"prompt_tokens": 3}},
            {"score": [0.25], "document": "a", "index": 0, "meta_info": {"prompt_tokens": 2}},
        ]
        results = [result | {"document": {"text": "ab"[result["index"]]}} for result in results]
    return Exchange(
        "rerank", engine, Api.RERANK, asks, (Seen("/v1/rerank", {"model": SERVED, **asks}),), (whole(answer),),
        {"results": results, "usage": usage},
    )  # fmt: skip


def _tokenize() -> list[Exchange]:
    count = {"count": 3, "tokens": [1, 2, 3]}
    text = {"prompt": HELLO}
    templated = {"messages": CHAT["messages"], "chat_template_kwargs": {"x": 1}}
    pieces = [{"id": i, "text": "t", "start": 0, "stop": 1} for i in (1, 2, 3)]
    return [
        *(
            Exchange("tokenize", engine, Api.TOKENIZE, text, (Seen("/tokenize", {"model": SERVED, **text}),),
                     (whole(count | {"max_model_len": 512}),), count | {"max_model_len": 512})
            for engine in ("vllm", "sglang")
        ),
        *(
            Exchange("tokenize-messages", engine, Api.TOKENIZE, templated,
                     (Seen("/tokenize", {"model": SERVED, **templated}),), (whole(count),), count)
            for engine in ("vllm", "sglang")
        ),
        Exchange("tokenize", "llamacpp", Api.TOKENIZE, text | {"add_special_tokens": False},
                 (Seen("/tokenize", {"content": HELLO, "add_special": False}),),
                 (whole({"tokens": [1, 2, 3]}),), count),
        Exchange("tokenize-messages", "llamacpp", Api.TOKENIZE, templated,
                 (Seen("/apply-template", templated), Seen("/tokenize", {"content": "<u>Hi", "add_special": True})),
                 (whole({"prompt": "<u>Hi"}), whole({"tokens": [1, 2, 3]})), count),
        Exchange("tokenize", "tgi", Api.TOKENIZE, text, (Seen("/tokenize", {"inputs": HELLO}),),
                 (whole(pieces),), count),
        Exchange("tokenize-messages", "tgi", Api.TOKENIZE, CHAT, (Seen("/chat_tokenize", {"model": SERVED, **CHAT}),),
                 (whole({"tokenize_response": pieces, "templated_text": "<u>Hi"}),), count),
    ]  # fmt: skip


def _vllm_generate() -> list[Exchange]:
    asked = {"prompt": "Once", "max_tokens": 8, "temperature": 0.5, "stop": ["\n\n"], "seed": 7}
    grown = [{"text": [f"Once{HELLO[:size]}"]} for size in (0, 3, 9, len(HELLO))]
    told = Told(HELLO, finish=["stop"])
    seen = Seen("/generate", asked | {"stream": True})
    return [
        *(
            Exchange(f"stream-{name}", "vllm-generate", Api.COMPLETIONS, PROMPT | {"n": 1, "user": "u"}, (seen,),
                     (lines(*grown, end=end, escape=escape),), told, stream=True)
            for name, end, escape in (("lines", b"\n", True), ("nul", b"\0", True), ("crlf", b"\r\n", False))
        ),
        Exchange("whole", "vllm-generate", Api.COMPLETIONS, PROMPT, (Seen("/generate", asked | {"stream": False}),),
                 (whole({"text": ["Once" + HELLO]}),), Told(HELLO, finish=["stop"])),
    ]  # fmt: skip


def _sglang_generate() -> list[Exchange]:
    sampling = {"max_new_tokens": 8, "temperature": 0.5, "stop": ["\n\n"], "sampling_seed": 7}

    def event(text: str, tokens: int, finish: Any = None) -> dict[str, Any]:
        meta = {"id": "r1", "finish_reason": finish, "prompt_tokens": 4, "completion_tokens": tokens}
        return {"text": text, "output_ids": [1], "meta_info": meta | {"cached_tokens": 1, "e2e_latency": 0.1}}

    cut = {"type": "length", "length": 8}
    grown = [event("Grü", 1), event("Grüße, \ufffd", 2), event("Grüße, 世界", 3), event(HELLO, 8, cut)]
    seen = Seen("/generate", {"text": "Once", "sampling_params": sampling, "stream": True})
    abort = {"type": "abort", "message": "too long", "status_code": 400}
    return [
        Exchange("stream", "sglang-generate", Api.COMPLETIONS, PROMPT, (seen,), (sse(*grown),),
                 Told(HELLO, finish=["length"], usage=(4, 8)), stream=True),
        Exchange("stream-crlf-without-done", "sglang-generate", Api.COMPLETIONS, PROMPT, (seen,),
                 (sse(*grown, end=b"\r\n\r\n", done=False),),
                 Told(HELLO, finish=["length"], usage=(4, 8)), stream=True),
        Exchange("abort", "sglang-generate", Api.COMPLETIONS, PROMPT, (seen,),
                 (sse(event("a", 1), event("", 0, abort)),),
                 Told("a", error="too long"), stream=True),
        Exchange("error", "sglang-generate", Api.COMPLETIONS, PROMPT, (seen,),
                 (sse(event("a", 1), {"error": {"message": "no"}}),), Told("a", error="no"), stream=True),
        Exchange("whole", "sglang-generate", Api.COMPLETIONS, PROMPT | {"n": 2},
                 (Seen("/generate", {"text": "Once", "sampling_params": sampling | {"n": 2}, "stream": False}),),
                 (whole([event(HELLO, 8, cut), event("b", 2, {"type": "stop", "matched": 2})]),),
                 Told(HELLO, finish=["length", "stop"], usage=(4, 10), others=["b"])),
    ]  # fmt: skip


def _tgi_generate() -> list[Exchange]:
    parameters = {
        "max_new_tokens": 8,
        "details": True,
        "do_sample": True,
        "temperature": 0.5,
        "stop": ["\n\n"],
        "seed": 7,
    }
    body = {"inputs": "Once", "parameters": parameters}

    def token(text: str, special: bool = False, **more: Any) -> dict[str, Any]:
        one = {"id": 1, "text": text, "logprob": -0.5, "special": special}
        return {"index": 1, "token": one, "generated_text": None, "details": None} | more

    details = {"finish_reason": "eos_token", "generated_tokens": 4, "seed": 7, "input_length": 2}
    tokens = [token("Grüße, "), token("世界"), token(" 🌍")]
    last = token("</s>", True, generated_text=HELLO, details=details)
    told = Told(HELLO, finish=["stop"], usage=(2, 4))
    plain = {name: value for name, value in details.items() if name != "input_length"}
    return [
        Exchange("stream", "tgi-generate", Api.COMPLETIONS, PROMPT, (Seen("/generate_stream", body),),
                 (sse(*tokens, last, done=False).replace(b"data: ", b"data:"),), told, stream=True),
        Exchange("error-stream", "tgi-generate", Api.COMPLETIONS, PROMPT, (Seen("/generate_stream", body),),
                 (sse(tokens[0], {"error": "shard died", "error_type": "generation"}, done=False),),
                 Told("Grüße, ", error="shard died"), stream=True),
        Exchange("whole", "tgi-generate", Api.COMPLETIONS, PROMPT,
                 (Seen("/generate", body), Seen("/tokenize", {"inputs": "Once"})),
                 (whole({"generated_text": HELLO, "details": plain | {"prefill": [], "tokens": []}}),
                  whole([{"id": 5}, {"id": 6}])), told),
    ]  # fmt: skip


def _ollama() -> list[Exchange]:
    def line(done: bool = False, **message: Any) -> dict[str, Any]:
        said = {"role": "assistant", "content": ""} | message
        return {"model": SERVED, "created_at": "2026-01-01T00:00:00.5Z", "message": said, "done": done}

    counts = {"done_reason": "stop", "total_duration": 9, "prompt_eval_count": 26, "eval_count": 5}
    call = {"function": {"name": "weather", "arguments": {"city": "Zürich"}}}
    asks = {
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}]},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bern"}'}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "4 °C"},
        ],
        "tools": [TOOL], "temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": "END", "max_completion_tokens": 64,
        "num_ctx": 4096, "keep_alive": "5m", "reasoning_effort": "low", "user": "u", "n": 1,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    }  # fmt: skip
    seen = {
        "model": SERVED, "stream": True, "keep_alive": "5m", "think": "low", "tools": [TOOL],
        "format": {"type": "object"},
        "options": {"temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["END"], "num_predict": 64, "num_ctx": 4096},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is it?", "images": [PIXEL]},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "c1", "function": {"name": "weather", "arguments": {"city": "Bern"}}}]},
            {"role": "tool", "content": "4 °C", "tool_name": "weather", "tool_call_id": "c1"},
        ],
    }  # fmt: skip
    plain = {"model": SERVED, **CHAT}
    prompt = {"model": SERVED, "prompt": "Once", "raw": True,
              "options": {"num_predict": 8, "temperature": 0.5, "stop": ["\n\n"], "seed": 7}}  # fmt: skip
    end = line(True) | counts
    generated = {"model": SERVED, "created_at": "x", "response": "", "done": True, "context": [1]}
    vectors = {"model": SERVED, "embeddings": [[0.5, -1.0], [1.0, 0.0]], "prompt_eval_count": 4}
    data = [
        {"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate([[0.5, -1.0], [1.0, 0.0]])
    ]
    usage = {"prompt_tokens": 4, "total_tokens": 4}
    return [
        Exchange("chat-stream", "ollama", Api.CHAT, asks, (Seen("/api/chat", seen),),
                 (lines(line(thinking="hm"), line(content="Grüße, "), line(content="世界 🌍"), end),),
                 Told(HELLO, "hm", finish=["stop"], usage=(26, 5)), stream=True),
        Exchange("tool-stream", "ollama", Api.CHAT, CHAT, (Seen("/api/chat", plain | {"stream": True}),),
                 (lines(line(tool_calls=[call]), line(tool_calls=[call | {"id": "c9"}]), end, end=b"\r\n",
                        escape=True),),
                 Told(calls=[("weather", {"city": "Zürich"})] * 2, finish=["tool_calls"], usage=(26, 5)), stream=True),
        Exchange("error-stream", "ollama", Api.CHAT, CHAT, (Seen("/api/chat", plain | {"stream": True}),),
                 (lines(line(content="Hel"), {"error": "an error was encountered while running the model"}),),
                 Told("Hel", error="an error was encountered while running the model"), stream=True),
        Exchange("chat", "ollama", Api.CHAT, CHAT | {"tools": [TOOL], "tool_choice": "none"},
                 (Seen("/api/chat", plain | {"stream": False}),),
                 (whole(line(True, content=HELLO, thinking="hm") | counts | {"done_reason": "length"}),),
                 Told(HELLO, "hm", finish=["length"], usage=(26, 5))),
        Exchange("completion-stream", "ollama", Api.COMPLETIONS, PROMPT,
                 (Seen("/api/generate", prompt | {"stream": True}),),
                 (lines(generated | {"response": "Grüße, ", "done": False},
                        generated | {"response": "世界 🌍", "done": False}, generated | counts),),
                 Told(HELLO, finish=["stop"], usage=(26, 5)), stream=True),
        Exchange("completion", "ollama", Api.COMPLETIONS, PROMPT, (Seen("/api/generate", prompt | {"stream": False}),),
                 (whole(generated | counts | {"response": HELLO}),), Told(HELLO, finish=["stop"], usage=(26, 5))),
        Exchange("embeddings", "ollama", Api.EMBEDDINGS, {"input": ["a", "b"], "keep_alive": 0},
                 (Seen("/api/embed", {"model": SERVED, "input": ["a", "b"], "keep_alive": 0}),), (whole(vectors),),
                 {"object": "list", "data": data, "usage": usage}),
        Exchange("embeddings-base64", "ollama", Api.EMBEDDINGS, {"input": "a", "encoding_format": "base64"},
                 (Seen("/api/embed", {"model": SERVED, "input": "a"}),),
                 (whole({"embeddings": [[0.5, -1.0]], "prompt_eval_count": 4}),),
                 {"data": [{"object": "embedding", "index": 0, "embedding": "AAAAPwAAgL8="}], "usage": usage}),
    ]  # fmt: skip


EXCHANGES: Final = [
    *(exchange for engine in ("vllm", "sglang", "llamacpp", "tgi", "openai") for exchange in _openai(engine)),
    *(_embeddings(engine) for engine in ("vllm", "sglang", "llamacpp", "openai")),
    *(_rerank(engine) for engine in ("vllm", "sglang", "llamacpp")),
    *_tokenize(),
    *_vllm_generate(),
    *_sglang_generate(),
    *_tgi_generate(),
    *_ollama(),
]
