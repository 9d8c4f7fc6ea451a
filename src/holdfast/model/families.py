"""Families of models by the beginning of their names, as their providers describe them in November 2026.

Each has a provider, a tokenizer, a window, the longest reply, and the most input where a provider
takes less than the rest. Dots in names are dashes here, since hosts write both. Where a family has
windows of several sizes, a small one stands here: `register_model` says better.
"""

from __future__ import annotations

from holdfast.model.estimates import USUAL

Family = tuple[str, str, int, int] | tuple[str, str, int, int, int]

ESTIMATE = f"estimate:{USUAL:g}"
_CLAUDE = "estimate:1.6"
"""Up to 4.6: a third more tokens than OpenAI's for code, a sixth for prose, as others measured."""
_CLAUDE_NEW = "estimate:2"
"""From 4.7: up to 1.47 times as many as before."""

_OLD = "estimate:2"
"""Vocabularies of 32,000 entries, poor in everything that is not English."""
_O200K, _CL100K = "o200k_base", "cl100k_base"

FAMILIES: dict[str, Family] = {
    "gpt-6": ("openai", ESTIMATE, 1_050_000, 128_000, 922_000),  # its encoding is not published
    "gpt-5": ("openai", _O200K, 400_000, 128_000, 272_000),
    "gpt-5-chat": ("openai", _O200K, 128_000, 16_384),
    "gpt-5-1-chat": ("openai", _O200K, 128_000, 16_384),
    "gpt-5-2-chat": ("openai", _O200K, 128_000, 16_384),
    "gpt-5-3-chat": ("openai", _O200K, 128_000, 16_384),
    "gpt-5-4": ("openai", _O200K, 1_050_000, 128_000, 922_000),
    "gpt-5-4-mini": ("openai", _O200K, 400_000, 128_000, 272_000),
    "gpt-5-4-nano": ("openai", _O200K, 400_000, 128_000, 272_000),
    "gpt-5-5": ("openai", _O200K, 1_050_000, 128_000, 922_000),
    "gpt-5-6": ("openai", _O200K, 1_050_000, 128_000, 922_000),
    "gpt-5-6-cyber": ("openai", _O200K, 400_000, 128_000, 272_000),
    "gpt-4-5": ("openai", _O200K, 128_000, 16_384),
    "gpt-4-1": ("openai", _O200K, 1_047_576, 32_768),
    "gpt-4o": ("openai", _O200K, 128_000, 16_384),
    "chatgpt-4o": ("openai", _O200K, 128_000, 16_384),
    "gpt-audio": ("openai", _O200K, 128_000, 16_384),
    "o1": ("openai", _O200K, 200_000, 100_000),
    "o1-mini": ("openai", _O200K, 128_000, 65_536),
    "o1-preview": ("openai", _O200K, 128_000, 32_768),
    "o3": ("openai", _O200K, 200_000, 100_000),
    "o4-mini": ("openai", _O200K, 200_000, 100_000),
    "gpt-oss": ("openai", _O200K, 131_072, 32_768),
    "gpt-4": ("openai", _CL100K, 8_192, 4_096),
    "gpt-4-32k": ("openai", _CL100K, 32_768, 4_096),
    "gpt-4-turbo": ("openai", _CL100K, 128_000, 4_096),
    "gpt-4-1106": ("openai", _CL100K, 128_000, 4_096),
    "gpt-4-0125": ("openai", _CL100K, 128_000, 4_096),
    "gpt-4-vision": ("openai", _CL100K, 128_000, 4_096),
    "gpt-3-5-turbo": ("openai", _CL100K, 16_385, 4_096),
    "gpt-3-5-turbo-0301": ("openai", _CL100K, 4_096, 4_096),
    "gpt-3-5-turbo-0613": ("openai", _CL100K, 4_096, 4_096),
    "gpt-3-5-turbo-instruct": ("openai", _CL100K, 4_096, 4_096),
    "gpt-35-turbo": ("openai", _CL100K, 16_385, 4_096),
    "claude": ("anthropic", _CLAUDE_NEW, 200_000, 64_000),
    "claude-2": ("anthropic", _CLAUDE, 100_000, 4_096),
    "claude-instant": ("anthropic", _CLAUDE, 100_000, 4_096),
    "claude-3": ("anthropic", _CLAUDE, 200_000, 4_096),
    "claude-3-5": ("anthropic", _CLAUDE, 200_000, 8_192),
    "claude-3-7": ("anthropic", _CLAUDE, 200_000, 64_000),
    "claude-opus-4": ("anthropic", _CLAUDE, 200_000, 32_000),
    "claude-sonnet-4": ("anthropic", _CLAUDE, 200_000, 64_000),
    "claude-haiku-4": ("anthropic", _CLAUDE, 200_000, 64_000),
    "claude-opus-4-5": ("anthropic", _CLAUDE, 200_000, 64_000),
    "claude-opus-4-6": ("anthropic", _CLAUDE, 1_000_000, 128_000),
    "claude-sonnet-4-6": ("anthropic", _CLAUDE, 1_000_000, 128_000),
    "claude-opus-4-7": ("anthropic", _CLAUDE_NEW, 1_000_000, 128_000),
    "claude-opus-4-8": ("anthropic", _CLAUDE_NEW, 1_000_000, 128_000),
    "claude-opus-5": ("anthropic", _CLAUDE_NEW, 1_000_000, 128_000),
    "claude-sonnet-5": ("anthropic", _CLAUDE_NEW, 1_000_000, 128_000),
    "claude-haiku-5": ("anthropic", _CLAUDE_NEW, 1_000_000, 128_000),
    "claude-fable": ("anthropic", _CLAUDE_NEW, 1_000_000, 128_000),
    "claude-mythos": ("anthropic", _CLAUDE_NEW, 1_000_000, 128_000),
    "gemini": ("google", ESTIMATE, 1_048_576, 65_536),
    "gemini-1-0": ("google", ESTIMATE, 32_760, 8_192),
    "gemini-1-5": ("google", ESTIMATE, 1_048_576, 8_192),
    "gemini-1-5-pro": ("google", ESTIMATE, 2_097_152, 8_192),
    "gemini-2-0": ("google", ESTIMATE, 1_048_576, 8_192),
    "gemma": ("google", ESTIMATE, 8_192, 8_192),
    "gemma-3": ("google", ESTIMATE, 131_072, 8_192),
    "gemma3": ("google", ESTIMATE, 131_072, 8_192),
    "gemma-4": ("google", ESTIMATE, 262_144, 32_768),
    "llama": ("meta", ESTIMATE, 131_072, 8_192),
    "llama-2": ("meta", _OLD, 4_096, 4_096),
    "llama2": ("meta", _OLD, 4_096, 4_096),
    "llama-3": ("meta", ESTIMATE, 8_192, 8_192),
    "llama3": ("meta", ESTIMATE, 8_192, 8_192),
    "llama-3-1": ("meta", ESTIMATE, 131_072, 8_192),
    "llama-3-2": ("meta", ESTIMATE, 131_072, 8_192),
    "llama-3-3": ("meta", ESTIMATE, 131_072, 8_192),
    "llama3-1": ("meta", ESTIMATE, 131_072, 8_192),
    "llama3-2": ("meta", ESTIMATE, 131_072, 8_192),
    "llama3-3": ("meta", ESTIMATE, 131_072, 8_192),
    "llama-4": ("meta", ESTIMATE, 131_072, 8_192),
    "mistral": ("mistral", ESTIMATE, 128_000, 16_384),
    "mistral-7b": ("mistral", _OLD, 32_768, 8_192),
    "mistral-tiny": ("mistral", _OLD, 32_000, 8_192),
    "mixtral": ("mistral", _OLD, 32_768, 8_192),
    "open-mistral": ("mistral", _OLD, 32_000, 8_192),
    "ministral": ("mistral", ESTIMATE, 131_072, 16_384),
    "magistral": ("mistral", ESTIMATE, 128_000, 40_000),
    "codestral": ("mistral", ESTIMATE, 128_000, 16_384),
    "devstral": ("mistral", ESTIMATE, 128_000, 16_384),
    "pixtral": ("mistral", ESTIMATE, 128_000, 16_384),
    "qwen": ("qwen", ESTIMATE, 32_768, 8_192),
    "qwen2": ("qwen", ESTIMATE, 32_768, 8_192),
    "qwen3": ("qwen", ESTIMATE, 32_768, 8_192),
    "qwq": ("qwen", ESTIMATE, 32_768, 8_192),
    "deepseek": ("deepseek", ESTIMATE, 65_536, 8_192),
    "deepseek-v4": ("deepseek", ESTIMATE, 1_000_000, 393_216),
}
