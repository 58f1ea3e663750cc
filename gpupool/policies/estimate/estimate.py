"""The estimate: what each card and the host must hold, in parts that can be shown."""

from dataclasses import dataclass, replace
from typing import Final

from gpupool.policies.estimate import buffers, kv_cache
from gpupool.policies.estimate.architecture import Architecture
from gpupool.policies.estimate.kv_cache import CachePlan
from gpupool.policies.estimate.run import CannotEstimate, Run
from gpupool.policies.estimate.spread import Deal, deal_layers
from gpupool.policies.estimate.weights import Weights

_MOST_BYTES: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class Part:
    """What one device, or the host, holds; bytes."""

    weights: int = 0
    kv_cache: int = 0
    compute: int = 0
    graphs: int = 0
    context: int = 0
    layers: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.compute + self.graphs + self.context


@dataclass(frozen=True, slots=True)
class Estimate:
    """`cards` in order, empty where everything is on the host; `file_bytes` is what the weights take on disk."""

    cards: tuple[Part, ...]
    host: Part
    file_bytes: int
    offloaded: bool  # part of the model is on the host although there are cards: said in so many words
    notes: tuple[str, ...] = ()
    measured: bool = False  # an engine has run so, and what it told is in here

    @property
    def device_bytes(self) -> int:
        """What is to be claimed of each device: the most that any of them holds."""
        return max((card.total for card in self.cards), default=self.host.total)

    @property
    def total_bytes(self) -> int:
        return sum(card.total for card in self.cards) + self.host.total


def estimate(architecture: Architecture, weights: Weights, run: Run) -> Estimate:
    """What `run` takes. Never less than the weights' files, unless part of them is stated to be on the host.

    Raises CannotEstimate for what the engine would refuse.
    """
    try:
        _refuse_ragged_heads(architecture, run)
        if not run.on_cards:
            made = _on_host(architecture, weights, run)
        elif run.by_layer:
            made = _by_layer(architecture, weights, run)
        else:
            made = _shared(architecture, weights, run)
        if made.total_bytes > _MOST_BYTES:
            raise ValueError("it would be more than any machine has, so the numbers in its headers are wrong")
        return made
    except ValueError as error:
        if isinstance(error, CannotEstimate):
            raise
        raise CannotEstimate(f"Its memory cannot be estimated: {error}.") from error


def _refuse_ragged_heads(architecture: Architecture, run: Run) -> None:
    for kind, length in ((run.key_type, architecture.key_length), (run.value_type, architecture.value_length)):
        if kind in kv_cache.QUANTISED and length % kv_cache.QUANTISED_BLOCK:
            raise CannotEstimate(
                f"A KV cache of type {kind} is in blocks of {kv_cache.QUANTISED_BLOCK}, which do not divide "
                f"the model's heads of {length}: the engine would not start."
            )


def _cache(run: Run, *, cards: int = 1) -> CachePlan:
    tokens = kv_cache.padded(run.context) if run.by_layer else run.context
    return CachePlan(
        tokens=tokens,
        sequences=run.kept,
        key_type=run.key_type,
        value_type=run.value_type,
        batch=run.step_tokens,
        values_apart=run.by_layer,
        cards=cards,
    )


def _on_host(architecture: Architecture, weights: Weights, run: Run) -> Estimate:
    plan = _cache(run)
    compute = (
        buffers.llamacpp_compute(architecture, run, has_output=True, cards=1)
        if run.by_layer
        else buffers.paged_compute(architecture, run)
    )
    host = Part(
        weights=weights.total_bytes,
        kv_cache=kv_cache.all_layers_bytes(architecture, plan),
        compute=compute,
        context=buffers.host_base(architecture, run),
        layers=architecture.layers,
    )
    return Estimate((), host, weights.total_bytes, offloaded=False, notes=run.notes)


def _by_layer(architecture: Architecture, weights: Weights, run: Run) -> Estimate:
    deal = deal_layers(architecture.layers, cards=run.cards, gpu_layers=run.gpu_layers)
    plan = _cache(run)
    partly = deal.output_on is None
    copied = weights.output_on_card_bytes if partly else 0
    cards = []
    for number, own in enumerate(deal.cards):
        has_output = deal.output_on == number
        cards.append(
            Part(
                weights=sum(weights.layers[layer] for layer in own)
                + (weights.output_on_card_bytes if has_output else 0),
                kv_cache=sum(kv_cache.layer_bytes(architecture, layer, plan) for layer in own),
                compute=buffers.llamacpp_compute(
                    architecture, run, has_output=has_output, cards=run.cards, copied_bytes=copied
                ),
                context=buffers.CARD_CONTEXT_BYTES,
                layers=len(own),
            )
        )
    offloaded = partly or len(deal.host) > 0
    host = _left_on_host(architecture, weights, run, deal, plan)
    notes = run.notes
    if offloaded:
        notes += (_offload_note(architecture, deal, run),)
    made = Estimate(tuple(cards), host, weights.total_bytes, offloaded=offloaded, notes=notes)
    return made if offloaded else _at_least_the_file(made, weights)


def _left_on_host(architecture: Architecture, weights: Weights, run: Run, deal: Deal, plan: CachePlan) -> Part:
    own = deal.host
    output = weights.output_bytes if deal.output_on is None else 0
    return Part(
        weights=weights.input_bytes + sum(weights.layers[layer] for layer in own) + output,
        kv_cache=sum(kv_cache.layer_bytes(architecture, layer, plan) for layer in own),
        compute=buffers.llamacpp_compute(architecture, run, has_output=True, cards=1) if own else 0,
        context=buffers.host_base(architecture, run),
        layers=len(own),
    )


def _offload_note(architecture: Architecture, deal: Deal, run: Run) -> str:
    all_layers = architecture.layers + 1
    on_cards = sum(len(own) for own in deal.cards) + (deal.output_on is not None)
    asked = "" if run.gpu_layers is None else f" (n_gpu_layers {run.gpu_layers})"
    return f"{on_cards} of {all_layers} layers are on devices{asked}; the rest is in the host's memory, and slower."


def _shared(architecture: Architecture, weights: Weights, run: Run) -> Estimate:
    """Tensor parallel: every card has its part of every layer, and all of what cannot be cut."""
    cards = run.cards
    if architecture.heads % cards:
        raise CannotEstimate(
            f"{architecture.heads} attention heads cannot be shared by {cards} devices: "
            "take a number of devices that divides them."
        )
    own = -(-weights.total_bytes // cards)
    card = Part(
        weights=own,
        kv_cache=kv_cache.all_layers_bytes(architecture, _cache(run, cards=cards)),
        compute=buffers.paged_compute(architecture, run),
        graphs=buffers.graphs(architecture, run),
        context=buffers.PAGED_CONTEXT_BYTES + (buffers.TENSOR_PARALLEL_BYTES if cards > 1 else 0),
        layers=architecture.layers,
    )
    host = Part(context=buffers.host_base(architecture, run))
    made = Estimate((card,) * cards, host, weights.total_bytes, offloaded=False, notes=run.notes)
    return _at_least_the_file(made, weights)


def _at_least_the_file(made: Estimate, weights: Weights) -> Estimate:
    """Cards together never hold less than the weights' files, whatever small parts the engine leaves on the host."""
    short = weights.total_bytes - sum(card.total for card in made.cards)
    if short <= 0:
        return made
    each = -(-short // len(made.cards))
    return replace(made, cards=tuple(replace(card, context=card.context + each) for card in made.cards))
