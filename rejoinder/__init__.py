"""Rejoinder: a Chat Completions service to the letter of two published dialects."""

__version__ = "0.1.0"
