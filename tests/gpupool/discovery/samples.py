"""Real outputs of vendors' tools, read where they lie: beside the repository, never in it."""

from pathlib import Path

import pytest

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "data" / "gpu-samples"

needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"the samples are not at {SAMPLES}")


def read(folder: str, name: str) -> str:
    """One sample. Skips where the samples are not there."""
    if not SAMPLES.is_dir():
        pytest.skip(f"the samples are not at {SAMPLES}")
    return (SAMPLES / folder / name).read_text(errors="replace")


def assert_covered(folder: str, names: set[str], ending: str = "") -> None:
    """Every file of a folder is in a table, and no other."""
    if not SAMPLES.is_dir():
        pytest.skip(f"the samples are not at {SAMPLES}")
    assert {path.name for path in (SAMPLES / folder).iterdir() if path.name.endswith(ending)} == names
