"""What a request costs. Money is in millionths of the installation's currency, always whole."""

from dataclasses import dataclass
from typing import Final

_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class PriceTag:
    """Prices in effect: per million tokens, per request, per second of a GPU; all in millionths of the currency."""

    input_micros: int = 0
    cached_input_micros: int = 0
    output_micros: int = 0
    request_micros: int = 0
    gpu_second_micros: int = 0


FREE: Final = PriceTag()


def cost_micros(price: PriceTag, *, input_tokens: int, cached_tokens: int, output_tokens: int) -> int:
    """The cost of one request; `cached_tokens` are part of `input_tokens`. Rounded up, once a request.

    Grows with every argument but the cached share, so that a bound of the tokens gives a bound of the cost; see
    `bound_micros`.
    """
    cached = min(max(cached_tokens, 0), input_tokens)
    tokens = (
        (input_tokens - cached) * price.input_micros
        + cached * price.cached_input_micros
        + output_tokens * price.output_micros
    )
    return price.request_micros - (-tokens // _MILLION)


def bound_micros(price: PriceTag, *, input_tokens: int, output_tokens: int) -> int:
    """The most that a request of at most so many tokens can cost, however much of its input is cached."""
    tokens = input_tokens * max(price.input_micros, price.cached_input_micros) + output_tokens * price.output_micros
    return price.request_micros - (-tokens // _MILLION)
