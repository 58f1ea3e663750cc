"""Estimates for versions: their weights' headers where this process can read them, and what their engines measured."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import unquote

from gpupool.agent.artefacts import ArtefactMissing, ArtefactUriRefused, locate
from gpupool.engines.model_folder import CONFIG
from gpupool.models import Instance, ModelVersion
from gpupool.policies.estimate import (
    Architecture,
    CannotEstimate,
    Estimate,
    Measured,
    Weights,
    correct,
    estimate,
    from_config,
    from_gguf,
    from_tensors,
    read_run,
)
from gpupool.weights.config_json import read_config
from gpupool.weights.gguf import read_gguf
from gpupool.weights.safetensors import INDEX_FILE, read_header, read_index

_MOST_FILES: Final = 512
_SINGLE_FILE: Final = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be estimated; values left out are the engine arguments' own."""

    engine: str
    artefact_uri: str
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    device_kind: str = "gpu"
    devices: int = 1
    context: int | None = None
    cache_type: str | None = None
    flash_attention: bool | None = None
    batch: int | None = None


def estimate_asked(asked: Asked) -> Estimate:
    """Reads headers of the artefact's files, never their data. Raises CannotEstimate with a sentence."""
    if not asked.artefact_uri:
        raise CannotEstimate("It has no artefact to be read: an attached engine's memory is its own.")
    architecture, weights = read_model(asked.artefact_uri)
    run = read_run(
        asked.engine,
        asked.engine_args,
        cards=asked.devices,
        on_cards=asked.device_kind == "gpu",
        model_context=architecture.context_length,
        context=asked.context,
        cache_type=asked.cache_type,
        flash_attention=asked.flash_attention,
        batch=asked.batch,
    )
    return estimate(architecture, weights, run)


def asked_of(version: ModelVersion) -> Asked:
    """A version as it is run; of requests of a shape, as many sequences as that says."""
    shape = version.request_shape
    batch = shape.get("batch")
    return Asked(
        engine=version.engine,
        artefact_uri=version.artefact_uri,
        engine_args=version.engine_args,
        device_kind=version.device_kind,
        devices=version.devices,
        batch=batch if isinstance(batch, int) else None,
    )


def measured_of(version: ModelVersion) -> Measured:
    """What its newest instances told; nothing where none did.

    Engines whose devices share every layer tell the cache of one of them: all hold the same.
    """
    rows = Instance.objects.filter(version=version, ready_at__isnull=False).order_by("-pk")
    cache = rows.filter(kv_capacity_bytes__isnull=False).values_list("kv_capacity_bytes", flat=True).first()
    peak = rows.filter(device_peak_bytes__isnull=False).values_list("device_peak_bytes", flat=True).first()
    cards = max(1, version.devices)
    told = 1 if version.engine == "llamacpp" else cards
    return Measured(kv_cache=None if cache is None else cache * told, peak=None if peak is None else -(-peak // cards))


def corrected(made: Estimate, version: ModelVersion) -> Estimate:
    """The estimate of a version as it is run, with what was measured of it."""
    return correct(made, measured_of(version))


def read_model(uri: str) -> tuple[Architecture, Weights]:
    """A model's shape and weights from its files' headers. Raises CannotEstimate."""
    _check_name(PurePosixPath(unquote(uri)).name)  # first of all: nobody is told what other files there are
    try:
        path = locate(uri)
        _check_name(path.name)
        stat = path.stat()
        return _read(path, stat.st_mtime_ns, stat.st_size)
    except (ArtefactMissing, ArtefactUriRefused) as error:
        raise CannotEstimate(f"It cannot be estimated here: {_lowered(str(error))}") from error
    except OSError as error:
        raise CannotEstimate(f"Its files cannot be read here: {error.strerror or error}.") from error
    except ValueError as error:
        raise CannotEstimate(f"Its weights' headers cannot be read: {error}.") from error


def _check_name(name: str) -> None:
    if name != CONFIG and not name.endswith(".gguf"):
        raise CannotEstimate(
            f"It cannot be estimated here: only GGUF files (.gguf) and folders, named by their {CONFIG}, are."
        )


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int, _size: int) -> tuple[Architecture, Weights]:
    """Kept by path, time and size: a page that is looked at again reads nothing again."""
    if path.name == CONFIG:
        return _read_folder(path)
    model = read_gguf(path)
    table = next((one for one in model.tensors if one.name == "token_embd.weight"), None)
    vocabulary = table.dimensions[-1] if table is not None and table.dimensions else 0
    architecture = from_gguf(model.metadata, model.lengths, vocabulary)
    named = [(one.name, one.size_bytes) for one in model.tensors]
    return architecture, from_tensors([*named, ("unnamed", model.unnamed_bytes)], architecture.layers)


def _read_folder(path: Path) -> tuple[Architecture, Weights]:
    try:
        config = read_config(path)
    except ValueError as error:
        raise ValueError(f"its {CONFIG} {error}") from error
    architecture = from_config(config)
    return architecture, from_tensors(_tensors(path.parent), architecture.layers)


def _tensors(folder: Path) -> Iterable[tuple[str, int]]:
    """Names and sizes of all files that the folder's index names, or of its only one."""
    index = folder / INDEX_FILE
    names = sorted(set(read_index(index).weight_map.values())) if index.is_file() else [_SINGLE_FILE]
    if len(names) > _MOST_FILES:
        raise ValueError(f"its index names {len(names)} files")
    for name in names:
        for tensor in read_header(folder / name).tensors:
            yield tensor.name, tensor.bytes


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:] if sentence.startswith(("There ", "The ")) else sentence
