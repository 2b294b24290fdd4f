"""The only room that imports `triton_python_backend_utils`: tensors, calls between models, a guard of every request."""
