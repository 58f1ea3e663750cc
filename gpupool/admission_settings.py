"""What this installation asks of a version before it serves, as Django's settings have it."""

from dataclasses import dataclass

from django.conf import settings

from gpupool.policies.admission import Rule
from gpupool.weights.signature import Trust


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """`trust` is None where no trusted root is configured: signatures are neither asked for nor believed."""

    rule: Rule
    trust: Trust | None = None


def admission_settings() -> AdmissionSettings:
    """Of this process."""
    found: AdmissionSettings = settings.MODEL_ADMISSION
    return found
