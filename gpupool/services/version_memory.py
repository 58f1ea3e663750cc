"""What a version claims of its devices where nobody says it: the estimate, of headers that this process can read."""

from gpupool.models import ModelVersion
from gpupool.policies.estimate import CannotEstimate
from gpupool.reads.estimates import asked_of, estimate_asked
from tenants.services import InvalidInput


def fill_memory(version: ModelVersion) -> None:
    """Put the estimate where `memory_bytes` is 0, and the host's part of it where it is offloaded and not said.

    Raises InvalidInput where it cannot be estimated: somebody has to say it then.
    """
    if version.memory_bytes or not version.artefact_uri:
        return
    try:
        made = estimate_asked(asked_of(version))
    except CannotEstimate as error:
        raise InvalidInput(
            "memory_bytes", f"Say how many bytes one instance claims on each of its devices. {error}"
        ) from error
    version.memory_bytes = made.device_bytes
    if made.offloaded and not version.host_memory_bytes:
        version.host_memory_bytes = made.host.total
