"""Load and validate: an artefact's headers are read and held against its files, before an engine gets it. No tensor is.

A file that was cut off, or whose tensors lie outside it or over one another, is refused in a sentence; an engine would
end with a core dump, or not at all.
"""

from dataclasses import dataclass
from pathlib import Path

from gpupool.weights.config_json import read_config
from gpupool.weights.files import FOLDER_MARK, UnfitFolder, files_of
from gpupool.weights.gguf import GgufModel, read_part
from gpupool.weights.safetensors import INDEX_FILE, BadSafetensors, Header, Index, read_header, read_index


class HeaderRefused(ValueError):
    """No engine should be given this artefact; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What an artefact's headers say."""

    format: str  # gguf, safetensors
    tensors: int
    tensor_bytes: int


def check_headers(path: Path) -> Checked | None:
    """What the headers of the artefact at `path` say; None for a format that is not known here.

    Raises HeaderRefused, and OSError where a file cannot be read. Reads megabytes at most; blocks.
    """
    try:
        files = files_of(path)
    except UnfitFolder as error:
        raise HeaderRefused(str(error)) from error
    if not files:
        raise HeaderRefused(f"There are no files of a model at {path}.")
    try:
        if next(iter(files)).endswith(".gguf") and len({Path(name).suffix for name in files}) == 1:
            return _check_gguf(files)
        if any(name.endswith(".safetensors") for name in files):
            return _check_safetensors(files)
    except FileNotFoundError as error:
        raise HeaderRefused(f"{Path(str(error.filename)).name} is missing beside {path.name}.") from error
    return None


def _check_gguf(files: dict[str, Path]) -> Checked:
    parts: list[GgufModel] = []
    for name, file in files.items():
        try:
            part = read_part(file)
            _check_bounds(part)
        except ValueError as error:
            raise HeaderRefused(f"{name} is not a whole GGUF file: {error}.") from error
        parts.append(part)
    first = parts[0].metadata
    if not isinstance(first.get("general.architecture"), str):
        raise HeaderRefused(f"{next(iter(files))} does not say its architecture: it is not a model.")
    count = first.get("split.count", 0)
    if isinstance(count, int) and count > 1 and count != len(parts):
        raise HeaderRefused(f"The model is in {count} files, and {len(parts)} are here.")
    tensors = [tensor for part in parts for tensor in part.tensors]
    if not tensors:
        raise HeaderRefused(f"{next(iter(files))} holds no tensors: it is not a model.")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise HeaderRefused("A tensor is there twice.")
    return Checked("gguf", len(tensors), sum(tensor.size_bytes for tensor in tensors))


def _check_bounds(part: GgufModel) -> None:
    end = 0
    for tensor in sorted(part.tensors, key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            raise ValueError(f"tensor {tensor.name[:200]!r} lies over another")
        end = tensor.offset + tensor.size_bytes
    if end > part.data_bytes:
        raise ValueError(f"it is {end - part.data_bytes} bytes shorter than its tensors")


def _check_safetensors(files: dict[str, Path]) -> Checked:
    if FOLDER_MARK in files:
        _check_config(files[FOLDER_MARK])
    headers: dict[str, Header] = {}
    for name, file in files.items():
        if name.endswith(".safetensors") and "/" not in name:
            try:
                headers[name] = read_header(file)
            except BadSafetensors as error:
                raise HeaderRefused(f"{name} is not a whole safetensors file: {error}.") from error
    if INDEX_FILE in files:
        try:
            headers = _indexed(read_index(files[INDEX_FILE]), headers)
        except BadSafetensors as error:
            raise HeaderRefused(f"{INDEX_FILE}: {error}.") from error
    tensors = [tensor for header in headers.values() for tensor in header.tensors]
    if not tensors:
        raise HeaderRefused("The model's files hold no tensors.")
    return Checked("safetensors", len(tensors), sum(tensor.bytes for tensor in tensors))


def _indexed(index: Index, headers: dict[str, Header]) -> dict[str, Header]:
    """Those files that the index names, each with the tensors that it says."""
    listed: dict[str, set[str]] = {}
    for tensor, name in index.weight_map.items():
        listed.setdefault(name, set()).add(tensor)
    for name, tensors in listed.items():
        if name not in headers:
            raise HeaderRefused(f"{INDEX_FILE} names {name[:200]}, which is not there: the model was not copied whole.")
        if lacking := sorted(tensors - {tensor.name for tensor in headers[name].tensors}):
            raise HeaderRefused(f"{name} lacks {lacking[0][:200]!r} and {len(lacking) - 1} more that the index names.")
    return {name: headers[name] for name in listed}


def _check_config(path: Path) -> None:
    try:
        config = read_config(path)
    except ValueError as error:
        raise HeaderRefused(f"{FOLDER_MARK} {error}.") from error
    if not (config.get("model_type") or config.get("architectures")):
        raise HeaderRefused(f"{FOLDER_MARK} does not say model_type or architectures: it is not a model's.")
