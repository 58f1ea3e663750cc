"""Stands in for a trainer, and trains nothing: it copies an adapter with random weights to where a result belongs.

What it does besides is chosen by the job's suffix: `slow` waits to be ended, `deaf` does so and does not hear SIGTERM,
`fails`, `empty` (no result), `broken` (a result that is cut off), `pickle`, `loud` (says much), `environment` (says
what it sees of it), `leaves` (a process behind that has left its group).
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ADAPTER = Path(__file__).resolve().parent.parent / "data" / "tiny32-lora1"


def say(**told: object) -> None:
    print(json.dumps(told), flush=True)


def main() -> int:
    job = json.loads(Path(sys.argv[sys.argv.index("--job") + 1]).read_text())
    how, output = job["suffix"], Path(job["output"])
    examples = Path(job["training_file"]).read_bytes().splitlines()
    print(f"{len(examples)} examples", file=sys.stderr, flush=True)
    say(type="event", message="Looked at the examples")
    print("this line is no JSON", flush=True)
    for step in (1, 2):
        say(type="metrics", step=step, train_loss=2.5 / step, trained_tokens=step * 10 * len(examples))
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how in ("slow", "deaf"):
        say(type="event", message="Waiting", level="warn")
        while True:
            time.sleep(0.05)
    if how == "loud":
        for _ in range(200):
            print("x" * 1000, file=sys.stderr)
    if how == "leaves":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", how], start_new_session=True)
    if how == "environment":
        print(json.dumps(dict(os.environ)), file=sys.stderr)
    if how == "fails":
        return 3
    if how == "pickle":
        (output / "adapter_model.bin").write_bytes(b"\x80\x04.")
    elif how != "empty":
        weights = (ADAPTER / "adapter_model.safetensors").read_bytes()
        (output / "adapter_model.safetensors").write_bytes(weights[:-100] if how == "broken" else weights)
        (output / "adapter_config.json").write_bytes((ADAPTER / "adapter_config.json").read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
