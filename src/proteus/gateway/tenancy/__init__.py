"""Whose request it is, what it may use, when it goes, and what is written down of it."""
