"""Resources in the words of a container's manifest, in bodies that also take devices and bytes."""

from collections.abc import MutableMapping
from typing import Any

from rest_framework.exceptions import ValidationError

from gpupool.policies.resources import ResourcesRefused, parse_resources

HELP = "In the words of a container's manifest: nvidia.com/gpu-memory (2g), nvidia.com/gpu (2)."


def take_resources(values: MutableMapping[str, Any]) -> None:
    """Takes `resources` out and puts in what they ask for. Raises ValidationError, also for what is said twice."""
    given = values.pop("resources", None)
    if not given:
        return
    try:
        asked = parse_resources(given)
    except ResourcesRefused as error:
        raise ValidationError({"resources": [str(error)]}) from error
    for name, value in (("devices", asked.devices), ("memory_bytes", asked.memory_bytes)):
        if value is None:
            continue
        if values.get(name) not in (None, 0, value):
            raise ValidationError({name: ["The resources say otherwise: say it once."]})
        values[name] = value
