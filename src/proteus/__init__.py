"""Proteus: multimodal serving on NVIDIA Triton."""

__version__ = "0.1.0"
