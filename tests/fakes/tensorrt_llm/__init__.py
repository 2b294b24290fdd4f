"""A stand-in for TensorRT-LLM that computes on the CPU, in 32 bits, one sequence after the other.

Written from its documentation (docs/tensorrt_llm.md names the pages) and as strict as it: unknown names and wrong types
raise. tests/language/llm_api_contract.py is what holds it, and the real one on GPUs.
"""

from tensorrt_llm.llmapi import LLM
from tensorrt_llm.sampling_params import SamplingParams

__version__ = "1.3.0"
__all__ = ["LLM", "SamplingParams"]
