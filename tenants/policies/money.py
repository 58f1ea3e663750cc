"""Money as whole millionths of the installation's currency, and as people write it. Never a float in between."""

from decimal import Decimal, InvalidOperation
from typing import Final

MICROS: Final = 1_000_000
DIGITS: Final = 6
MOST_MICROS: Final = 1_000_000 * MICROS
"""Highest price of anything: a million of the currency. More is a slip, and sums would leave 64 bits."""


def micros_of(amount: Decimal | str) -> int:
    """The millionths that an amount of the currency is, exactly.

    Raises ValueError for what is no number, is not finite, or has more than six decimals.
    """
    try:
        value = amount if isinstance(amount, Decimal) else Decimal(amount)
    except InvalidOperation as error:
        raise ValueError("An amount is a decimal number.") from error
    if not value.is_finite() or abs(value.adjusted()) > 30:  # an exponent of a million would take all memory
        if value.is_zero() and value.is_finite():
            return 0
        raise ValueError("An amount is a decimal number of sensible size.")
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    whole = int("".join(map(str, digits)) or "0")
    shift = exponent + DIGITS
    micros: int
    micros, rest = divmod(whole * 10 ** max(shift, 0), 10 ** max(-shift, 0))
    if rest:
        raise ValueError(f"An amount has at most {DIGITS} decimals.")
    return -micros if sign else micros


def amount_of(micros: int, *, decimals: int = 2) -> str:
    """`micros` as a plain decimal number, with at least so many decimals and no more than it needs."""
    whole, rest = divmod(abs(micros), MICROS)
    fraction = f"{rest:0{DIGITS}d}".rstrip("0").ljust(decimals, "0")
    return f"{'-' if micros < 0 else ''}{whole}{'.' + fraction if fraction else ''}"


_CODES: Final = """
    AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF
    CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD HNL
    HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD
    MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG
    QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD
    TWD TZS UAH UGX USD UYU UZS VES VND VUV WST XAF XCD XOF XPF YER ZAR ZMW ZWG
"""
CURRENCIES: Final = frozenset(_CODES.split())
"""Codes of ISO 4217 that people pay with."""
