"""Which card gets which layers, where layers are dealt out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deal:
    """Layers of each card and of the host; `output_on` is the card that has the output, None: the host."""

    cards: tuple[range, ...]
    host: range
    output_on: int | None


def deal_layers(layers: int, *, cards: int, gpu_layers: int | None) -> Deal:
    """In order, as evenly as may be; the last layers go to cards first, and the output counts as one more.

    `gpu_layers` as `-ngl`: an 8B of 32 layers has 33. Raises ValueError without a card.
    """
    if cards < 1:
        raise ValueError("layers are dealt to one card at least")
    wanted = layers + 1 if gpu_layers is None else min(gpu_layers, layers + 1)
    offloaded = min(wanted, layers)
    first = layers - offloaded
    by_card: list[list[int]] = [[] for _ in range(cards)]
    for place in range(offloaded):
        by_card[place * cards // wanted].append(first + place)
    output_on = (wanted - 1) * cards // wanted if wanted > layers else None
    ranges = tuple(range(own[0], own[-1] + 1) if own else range(0) for own in by_card)
    return Deal(ranges, range(first), output_on)
