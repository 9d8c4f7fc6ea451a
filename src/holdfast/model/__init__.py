"""Backends for models: adapters over HTTP, scripted and recorded models, tokenizers, prices, summarizers, embedders."""
