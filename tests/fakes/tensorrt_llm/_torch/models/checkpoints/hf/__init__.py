"""As in TensorRT-LLM."""
