"""Moderators: texts → scores by category."""
