"""Agents: models and tools driven through turns that survive their process."""
