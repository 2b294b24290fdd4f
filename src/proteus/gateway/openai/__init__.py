"""The paths under /v1: documents in OpenAI's words, read, planned, answered."""
