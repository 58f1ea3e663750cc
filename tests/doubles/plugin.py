"""Packages that bring an engine, as an installer would lay them into a folder of the path."""

import sys
import textwrap
from pathlib import Path
from typing import Final

import pytest

WARP: Final = """
    from gpupool.engines.base import Engine
    from gpupool.engines.openai.wire import OpenAIWire

    ROOM = Engine(
        "warp", "Warp drive", OpenAIWire(), capabilities=frozenset({"chat", "telepathy"}), versions=">=9"
    )
"""

UPSIDE_DOWN: Final = '''
    """Speaks to an engine that takes a prompt at /warp and answers with the text alone."""

    import json

    from gpupool.engines.base import Engine, WireRequest
    from gpupool.engines.openai.wire import OpenAIWire


    class Call:
        def __init__(self, call):
            self._model = call.served_name
            prompt = json.loads(call.body)["messages"][-1]["content"]
            self.request = WireRequest("POST", "/warp", prompt.encode())

        def whole(self, body):
            message = {"role": "assistant", "content": body.decode()}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return json.dumps({"object": "chat.completion", "model": self._model, "choices": [choice]}).encode()


    class Wire(OpenAIWire):
        def health(self):
            return WireRequest("GET", "/health")

        def translate(self, call):
            return Call(call)


    ROOM = Engine(
        "warp", "Warp drive", Wire(), capabilities=frozenset({"chat"}), translates=frozenset({"chat"}),
        protocol="warp", versions=">=9",
    )
'''


class Site:
    """A folder of the path, for one test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        monkeypatch.syspath_prepend(folder)

    def install(self, package: str, entries: str, *, module: str = "", code: str = "") -> None:
        """The package's metadata with `entries` of our group, and its one module."""
        info = self.folder / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[gatehouse.engines]\n{entries}\n")
        if module:
            (self.folder / f"{module}.py").write_text(textwrap.dedent(code))
            self._monkeypatch.delitem(sys.modules, module, raising=False)
