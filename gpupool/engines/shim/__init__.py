"""The launch shim: a folder that is put before everything else on an engine's Python path.

Python runs its `sitecustomize` at the start of every process, so that the engine and its workers handle SIGUSR1 by
giving unused device memory back. Whether a process does is seen from outside by a file without a name that it holds
open, LISTENING: a process that does not is never sent the signal, which would end it.
"""

from pathlib import Path
from typing import Final

LISTENING: Final = "gatehouse-sigusr1"
FOLDER: Final = Path(__file__).resolve().parent / "path"
"""What goes on PYTHONPATH; nothing else is in it."""
