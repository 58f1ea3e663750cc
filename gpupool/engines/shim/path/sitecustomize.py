"""Runs at the start of an engine's Python processes: SIGUSR1 asks them to give unused device memory back.

Only the standard library: the engine's environment need not have anything of ours. The handler itself does next to
nothing, for it may interrupt any code; a thread does the work. What handles SIGUSR1 itself later is left to it.
"""

import contextlib
import gc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import threading
import types
from collections.abc import Iterable
from typing import Any

_LISTENING = "gatehouse-sigusr1"  # as in gpupool.engines.shim, which cannot be imported here
_HERE = os.path.dirname(os.path.abspath(__file__))

clipped: list[tuple[list[Any], float]] = []
"""(parameters, largest norm): what a trainer registered by `clip_on_signal`."""
_real_signal = signal.signal
_mark = -1
_pipe = (-1, -1)


def clip_on_signal(parameters: Iterable[Any], max_norm: float) -> None:
    """Have these parameters' gradients clipped as well; for trainers, `import gatehouse_shim` finds this."""
    clipped.append((list(parameters), float(max_norm)))


def give_back() -> None:
    """Free what nobody uses: gradients that were registered are clipped, and the allocator's cache is emptied."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for parameters, max_norm in clipped:
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    for name in ("cuda", "xpu"):
        kind = getattr(torch, name, None)
        if kind is not None and kind.is_initialized():
            kind.empty_cache()


def _on_signal(number: int, frame: types.FrameType | None) -> None:
    with contextlib.suppress(OSError):
        os.write(_pipe[1], b"x")


def _work(reading: int) -> None:
    while os.read(reading, 4096):
        try:
            give_back()
        except Exception as error:  # noqa: BLE001  # the engine must not suffer from being asked
            sys.stderr.write(f"gatehouse: memory was not given back: {error!r}\n")


def _watched_signal(number: Any, handler: Any) -> Any:
    """`signal.signal`, which notices that somebody else handles SIGUSR1 from now on."""
    before = _real_signal(number, handler)
    if number == signal.SIGUSR1 and handler is not _on_signal:
        _forget()
    return before


def _forget() -> None:
    global _mark
    if _mark >= 0:
        with contextlib.suppress(OSError):
            os.close(_mark)
        _mark = -1


def listen() -> None:
    """Handle SIGUSR1 in this process, unless somebody does already, and hold the file that says so."""
    global _mark, _pipe
    if not hasattr(os, "memfd_create") or signal.getsignal(signal.SIGUSR1) not in (signal.SIG_DFL, _on_signal):
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    _pipe = (reading, writing)
    threading.Thread(target=_work, args=(reading,), name="gatehouse-shim", daemon=True).start()
    _real_signal(signal.SIGUSR1, _on_signal)
    _forget()
    _mark = os.memfd_create(_LISTENING)


def _after_fork() -> None:
    # The thread is not in the child; of the pipe and the file it has the parent's.
    if signal.getsignal(signal.SIGUSR1) is _on_signal:
        for descriptor in _pipe:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        listen()


def _run_the_next() -> None:
    """The `sitecustomize` that this one stands before, if there is one."""
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if found is not None and found.loader is not None:
        found.loader.exec_module(importlib.util.module_from_spec(found))


def _begin() -> None:
    vars(signal)["signal"] = _watched_signal
    listen()
    os.register_at_fork(after_in_child=_after_fork)
    shim = types.ModuleType("gatehouse_shim")
    vars(shim)["clip_on_signal"] = clip_on_signal
    sys.modules["gatehouse_shim"] = shim
    _run_the_next()


_begin()
