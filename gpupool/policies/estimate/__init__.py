"""How much memory a version takes, on each of its devices and on the host. Pure."""

from gpupool.policies.estimate.architecture import Architecture, from_config, from_gguf
from gpupool.policies.estimate.estimate import Estimate, Part, estimate
from gpupool.policies.estimate.measured import Measured, correct
from gpupool.policies.estimate.run import CannotEstimate, Run, read_run
from gpupool.policies.estimate.weights import Weights, from_tensors

__all__ = [
    "Architecture",
    "CannotEstimate",
    "Estimate",
    "Measured",
    "Part",
    "Run",
    "Weights",
    "correct",
    "estimate",
    "from_config",
    "from_gguf",
    "from_tensors",
    "read_run",
]
