"""Models: classes that call them, records of a call, and the registry of their sizes, tokenizers and prices.

A model is any object with the methods of `Model`. `Tokenizer` and `Embedder` describe what `holdfast.open` takes as
`tokenizer` and `embedder`. `register_model` adds a model's window and tokenizer, `register_price` its price.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from holdfast.model.prices import register_price
from holdfast.model.registry import model_info, register_model
from holdfast.ports import Embedder, Model, Tokenizer
from holdfast.records.models import Delta, ModelCall, ModelInfo, ModelReply

if TYPE_CHECKING:
    from holdfast.model.providers import AnthropicMessages, OpenAIChat, OpenAIResponses
    from holdfast.model.recorded import Recorded
    from holdfast.model.scripted import Scripted

__all__ = [
    "AnthropicMessages",
    "Delta",
    "Embedder",
    "Model",
    "ModelCall",
    "ModelInfo",
    "ModelReply",
    "OpenAIChat",
    "OpenAIResponses",
    "Recorded",
    "Scripted",
    "Tokenizer",
    "model_info",
    "register_model",
    "register_price",
]

# Imported on first use: slow to import.
_LAZY_IMPORTS = {
    "AnthropicMessages": "holdfast.model.providers",
    "OpenAIChat": "holdfast.model.providers",
    "OpenAIResponses": "holdfast.model.providers",
    "Recorded": "holdfast.model.recorded",
    "Scripted": "holdfast.model.scripted",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_IMPORTS:
        return getattr(_import_module(_LAZY_IMPORTS[name]), name)
    raise AttributeError(f"module 'holdfast.models' has no attribute {name!r}")
