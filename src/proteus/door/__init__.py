"""The door: what a client sends, checked, and led through the stages to a streamed answer."""
