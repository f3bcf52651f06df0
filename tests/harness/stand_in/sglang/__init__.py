"""Stands in for SGLang where a test is about how servers start and end, not about what they compute."""
