"""What an engine needs besides weights and cache: activations, attention scratch, graphs, the driver's context.

An allocator gives the same bytes to one step after the other, so of the steps of a pass the largest counts.
"""

from typing import Final

from gpupool.policies.estimate.architecture import Architecture
from gpupool.policies.estimate.run import Run

MIB: Final = 1 << 20
CARD_CONTEXT_BYTES: Final = 250 * MIB
"""What a CUDA or HIP context and its libraries take of a card before anything is loaded; gguf-parser's figure."""
PAGED_CONTEXT_BYTES: Final = 600 * MIB
"""The same with PyTorch's, and what its caching allocator keeps in pieces."""
TENSOR_PARALLEL_BYTES: Final = 300 * MIB  # NCCL's buffers, where cards share layers
HOST_BASE_BYTES: Final = 150 * MIB  # an engine process before it loads
PYTHON_HOST_BYTES: Final = 3 << 30  # a Python engine with its libraries, before weights pass through it
_GRAPH_BYTES_A_LAYER: Final = 16 * MIB  # of all captured batch sizes together
_VOCABULARY_ENTRY_BYTES: Final = 200  # tokens, scores, and their maps in the host's memory
_COPIES: Final = 4  # of what goes in, where several cards work as a pipeline
_F32: Final = 4
_F16: Final = 2


def llamacpp_compute(
    architecture: Architecture, run: Run, *, has_output: bool, cards: int, copied_bytes: int = 0
) -> int:
    """The compute buffer of one card.

    Without flash attention a layer's scores are written out: tokens of the cache x tokens of the step x heads, in
    f32. `copied_bytes` are weights left on the host that are brought over for large steps (partial offload).
    """
    step, tokens = run.step_tokens, run.context
    rows = architecture.heads * architecture.key_length
    attention = _F32 * step * (2 * rows + architecture.embedding)
    if run.flash_attention:
        attention += _F16 * step * tokens  # its mask once more, in f16
        if run.key_type not in ("f16", "bf16", "f32"):
            attention += _unpacked(architecture, tokens)
    else:
        attention += _F32 * tokens * step * architecture.heads
    stages = [attention, _feed_forward(architecture, step)]
    if has_output or copied_bytes:
        stages.append(copied_bytes + _F32 * step * (architecture.vocabulary + architecture.embedding))
    inputs = _F32 * step * (architecture.embedding + 1 + tokens)  # embeddings, positions, mask
    return max(stages) + inputs * (_COPIES if cards > 1 else 1)


def paged_compute(architecture: Architecture, run: Run) -> int:
    """Peak of activations of one card in the profiling step of an engine with a paged cache, at 16 bits."""
    step, cards = run.step_tokens, run.cards
    width = architecture.feed_forward if not architecture.experts else architecture.feed_forward * 2
    layer = step * (4 * architecture.embedding + 3 * -(-width // cards)) * _F16
    sampling = 2 * _F32 * min(run.sequences, step) * architecture.vocabulary
    return layer + sampling


def graphs(architecture: Architecture, run: Run) -> int:
    """Bytes of captured graphs of one card."""
    return architecture.layers * _GRAPH_BYTES_A_LAYER if run.graphs else 0


def host_base(architecture: Architecture, run: Run) -> int:
    """The engine's own on the host, without weights and cache."""
    if not run.by_layer:
        return PYTHON_HOST_BYTES
    logits = _F32 * run.sequences * (architecture.vocabulary + architecture.embedding)
    return HOST_BASE_BYTES + architecture.vocabulary * _VOCABULARY_ENTRY_BYTES + logits


def _feed_forward(architecture: Architecture, step: int) -> int:
    rows = 2 * (architecture.feed_forward + architecture.embedding)
    if architecture.experts:
        rows += architecture.experts + architecture.experts_used * architecture.embedding
    return _F32 * step * rows


def _unpacked(architecture: Architecture, tokens: int) -> int:
    """A layer's quantised cache in f16, as flash attention reads it."""
    heads = max(architecture.kv_heads, default=0)
    return _F16 * tokens * heads * (architecture.key_length + architecture.value_length)
