"""Bills of materials are held against the artefact that they are said to be of."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.sbom import BadSbom, read_sbom

DIGEST = "d" * 64
CYCLONEDX: dict[str, Any] = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.6",
    "metadata": {
        "component": {
            "type": "machine-learning-model",
            "name": "qwen3",
            "version": "1",
            "hashes": [{"alg": "SHA-256", "content": DIGEST.upper()}, {"alg": "MD5", "content": "0" * 32}],
        }
    },
    "components": [
        {"type": "library", "name": "transformers", "version": "5.0", "components": [{"name": "x", "version": "1"}]}
    ],
}
SPDX: dict[str, Any] = {
    "spdxVersion": "SPDX-2.3",
    "packages": [{"name": "qwen3", "versionInfo": "1"}],
    "files": [{"fileName": "m.gguf", "checksums": [{"algorithm": "SHA256", "checksumValue": DIGEST}]}],
}


@pytest.mark.parametrize(("document", "kind", "components"), [(CYCLONEDX, "CycloneDX 1.6", 3), (SPDX, "SPDX-2.3", 1)])
def test_both_formats_are_read(document: dict[str, Any], kind: str, components: int) -> None:
    read = read_sbom(document, artefact=[DIGEST])
    assert (read.format, read.components) == (kind, components)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "neither CycloneDX"),
        ([], "is a JSON object"),
        (CYCLONEDX | {"specVersion": "0.9"}, "is read in the versions"),
        (CYCLONEDX | {"components": [{"name": "x"}]}, "'x' has no version"),
        (CYCLONEDX | {"components": [{"version": "1"}]}, "has no name"),
        (CYCLONEDX | {"components": "many"}, "members of its format"),
        (CYCLONEDX | {"components": [1]}, "members of its format"),
        ({"bomFormat": "CycloneDX", "specVersion": "1.6"}, "names no components"),
        (SPDX | {"spdxVersion": "SPDX-9"}, "neither CycloneDX"),
        (SPDX | {"files": [{"checksums": None}]}, "members of its format"),
        (SPDX | {"files": [{"checksums": [1]}]}, "members of its format"),
        (SPDX | {"files": []}, f"does not name the artefact's file with SHA-256 {DIGEST}"),
    ],
)
def test_what_is_wrong_is_named(document: Any, says: str) -> None:
    with pytest.raises(BadSbom, match=says):
        read_sbom(document, artefact=[DIGEST])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["components", "hashes", "component", "checksums", "name"]), inner, max_size=3
        )
    ),
    max_leaves=10,
)


@given(
    st.dictionaries(st.sampled_from(["components", "metadata", "packages", "files"]), json_values, max_size=4),
    st.sampled_from([{"bomFormat": "CycloneDX", "specVersion": "1.6"}, {"spdxVersion": "SPDX-2.3"}]),
)
def test_whatever_is_in_one_is_refused_in_sentences(document: dict[str, Any], kind: dict[str, Any]) -> None:
    with pytest.raises(BadSbom):
        read_sbom(document | kind, artefact=[DIGEST])
