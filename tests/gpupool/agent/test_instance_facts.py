"""What an engine uses of its devices, as far as they tell."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpupool.agent.instance_facts import used_by
from gpupool.agent.life import EngineLife
from gpupool.agent.state import InstanceRecord
from tests.doubles.node_web import row


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ({"a": {7: 10, 99: 5}, "b": {8: 20}}, 30),
        ({"a": {7: 0}, "b": {7: 0}}, 0),
        ({"a": {7: 10}, "b": {7: None}}, None),
        ({"a": {7: 10}, "b": None}, None),
        ({"a": {7: 10}, "b": {99: 20}}, None),  # numbers of another namespace, or not listed yet
        ({"a": {}, "b": {}}, None),  # its driver or tool lists no processes
    ],
)
def test_a_device_that_does_not_list_an_engine_says_nothing_of_it(
    uses: dict[str, dict[int, int | None] | None], expected: int | None, tmp_path: Path
) -> None:
    record = InstanceRecord(row=row(devices=["a", "b"], artefact_uri="file:///model.gguf"), phase="ready")
    process = SimpleNamespace(members=lambda: [7, 8])
    life = cast("EngineLife", SimpleNamespace(record=record, process=process, peak_bytes=None))
    assert used_by(life, uses.get) == expected
