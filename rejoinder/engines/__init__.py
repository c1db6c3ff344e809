"""Prompt → steps. Engines know no messages, no JSON, no text."""
