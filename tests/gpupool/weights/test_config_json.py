"""A model's `config.json`, as models have it."""

from pathlib import Path

import pytest

from gpupool.weights.config_json import read_config


def test_what_models_write_is_read(tmp_path: Path) -> None:
    """Mamba's have an Infinity, which strict JSON has not."""
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "mamba2", "time_step_limit": [0.0, Infinity]}')
    assert read_config(config)["model_type"] == "mamba2"


@pytest.mark.parametrize(
    ("text", "says"),
    [("[", "is not JSON"), ("[]", "of an object"), ("[" * 100_000, "is not JSON"), (" " * (4 << 20) + "{}", "larger")],
)
def test_what_is_no_object_or_too_large_is_refused(tmp_path: Path, text: str, says: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(text)
    with pytest.raises(ValueError, match=says):
        read_config(config)
