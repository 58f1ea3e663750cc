"""Writes GGUF files that have a header and a size, but no data: what an estimate reads of them is all there is."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpupool.weights.ggml import TYPES, tensor_bytes

Q4_0, Q8_0, Q4_K, Q5_K, Q6_K, F32 = 2, 8, 12, 13, 14, 0
assert [TYPES[kind].name for kind in (Q4_0, Q8_0, Q4_K, Q5_K, Q6_K, F32)] == [
    "Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F32",
]  # fmt: skip

Tensor = tuple[str, tuple[int, ...], int]
_ALIGNMENT: Final = 32


@dataclass(frozen=True)
class Shape:
    """A decoder of Llama's kind, by its published configuration."""

    architecture: str
    layers: int
    embedding: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    context: int
    head_dim: int = 128
    qkv_bias: bool = False

    def metadata(self) -> dict[str, int | str]:
        name = self.architecture
        return {
            "general.architecture": name,
            f"{name}.block_count": self.layers,
            f"{name}.embedding_length": self.embedding,
            f"{name}.feed_forward_length": self.feed_forward,
            f"{name}.attention.head_count": self.heads,
            f"{name}.attention.head_count_kv": self.kv_heads,
            f"{name}.context_length": self.context,
        }


LLAMA_3_8B: Final = Shape("llama", 32, 4096, 32, 8, 14336, 128256, 8192)
LLAMA_3_70B: Final = Shape("llama", 80, 8192, 64, 8, 28672, 128256, 8192)
QWEN_2_5_7B: Final = Shape("qwen2", 28, 3584, 28, 4, 18944, 152064, 131072, qkv_bias=True)


def tensors(shape: Shape, kind: int) -> list[Tensor]:
    """All matrices of `kind`; llama.cpp's Q4_K_M (`Q4_K`) keeps some of the more telling ones finer."""
    rows, heads, kv = shape.embedding, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    output = Q6_K if kind in (Q4_0, Q4_K) else kind
    found: list[Tensor] = [
        ("token_embd.weight", (rows, shape.vocabulary), kind),
        ("output_norm.weight", (rows,), F32),
        ("output.weight", (rows, shape.vocabulary), output),
    ]
    for number in range(shape.layers):
        finer = kind == Q4_K and _more_bits(number, shape.layers)
        values = Q6_K if finer else Q5_K if kind == Q4_K and shape.layers == 80 else kind
        layer: list[Tensor] = [
            ("attn_norm.weight", (rows,), F32),
            ("ffn_norm.weight", (rows,), F32),
            ("attn_q.weight", (rows, heads), kind),
            ("attn_k.weight", (rows, kv), kind),
            ("attn_v.weight", (rows, kv), values),
            ("attn_output.weight", (heads, rows), kind),
            ("ffn_gate.weight", (rows, shape.feed_forward), kind),
            ("ffn_up.weight", (rows, shape.feed_forward), kind),
            ("ffn_down.weight", (shape.feed_forward, rows), Q6_K if finer else kind),
        ]
        if shape.qkv_bias:
            layer += [("attn_q.bias", (heads,), F32), ("attn_k.bias", (kv,), F32), ("attn_v.bias", (kv,), F32)]
        found += [(f"blk.{number}.{name}", dimensions, one) for name, dimensions, one in layer]
    return found


def write_header(path: Path, metadata: Mapping[str, object], found: Sequence[Tensor], *, words: int = 0) -> Path:
    """A file as large as the tensors make it, with holes where they would be."""
    packed, offset, infos = [_pair(key, value) for key, value in metadata.items()], 0, []
    if words:
        packed.append(_text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, words) + _text("w") * words)
    for name, dimensions, kind in found:
        infos.append(_text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset))
        offset += _aligned(tensor_bytes(kind, dimensions) or 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(found), len(packed)) + b"".join(packed) + b"".join(infos)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(_aligned(len(head)) + offset)
    return path


def write_model(path: Path, shape: Shape, kind: int) -> Path:
    return write_header(path, shape.metadata(), tensors(shape, kind))


def _more_bits(layer: int, layers: int) -> bool:
    """As llama.cpp's quantiser chooses them."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _pair(key: str, value: object) -> bytes:
    match value:
        case bool():
            return _text(key) + struct.pack("<I?", 7, value)
        case int():
            return _text(key) + struct.pack("<II", 4, value)
        case str():
            return _text(key) + struct.pack("<I", 8) + _text(value)
        case list():
            return _text(key) + struct.pack(f"<IIQ{len(value)}I", 9, 4, len(value), *value)
    raise TypeError(value)
