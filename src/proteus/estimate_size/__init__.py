"""`proteus size`: a deployment and its traffic to memory of GPUs and numbers of pods; without Triton, without a GPU.

What is exact is marked so; what somebody stated or what is only assumed is as well. docs/runbook.md tells the formulas.
"""

from proteus.estimate_size.fleet import Fleet, Pods, Size, estimate_size
from proteus.estimate_size.memory import LanguageMemory, PoolMemory, Row, Serving
from proteus.estimate_size.report import size_document, size_tables
from proteus.estimate_size.traffic import Traffic
from proteus.estimate_size.weights import Weights

__all__ = [
    "Fleet",
    "LanguageMemory",
    "Pods",
    "PoolMemory",
    "Row",
    "Serving",
    "Size",
    "Traffic",
    "Weights",
    "estimate_size",
    "size_document",
    "size_tables",
]
