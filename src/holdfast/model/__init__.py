"""Backends around models: tokenizers, summarizers."""
