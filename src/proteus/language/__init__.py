"""From a conversation to ids, and from ids to text: prompt, engine, sampling, streaming. No Triton, no torch."""
