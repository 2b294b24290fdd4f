"""Bytes of a picture to the pixels the encoder reads."""
