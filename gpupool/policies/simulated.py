"""What runs on simulated nodes: versions whose artefact is made up too, and no others.

A simulated engine answers with made-up words. No client that asks for a real model may ever get them.
"""

from typing import Final

PREFIX: Final = "file:///simulated/"


def is_simulated(artefact_uri: str) -> bool:
    """Whether a version is one of a simulated fleet, by where its artefact is said to be."""
    return artefact_uri.startswith(PREFIX)
