"""The check of contents, before they are encoded and after they are made."""
