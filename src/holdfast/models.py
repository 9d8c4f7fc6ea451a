"""Models: classes that call them, records of a call, and the registry of their sizes, tokenizers and prices.

A model is any object with the methods of `Model`. `Tokenizer` and `Embedder` describe what `holdfast.open` takes as
`tokenizer` and `embedder`. `register_model` adds a model's window and tokenizer, `register_price` its price.
"""

from typing import TYPE_CHECKING

from holdfast.core.lazy import lazy_names as _lazy_names
from holdfast.model.prices import register_price
from holdfast.model.registry import model_info, register_model
from holdfast.ports import Embedder, Model, Tokenizer
from holdfast.records.messages import Delta, ModelCall, ModelInfo, ModelReply

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
__getattr__ = _lazy_names(
    __name__,
    {
        "holdfast.model.providers": "AnthropicMessages OpenAIChat OpenAIResponses",
        "holdfast.model.recorded": "Recorded",
        "holdfast.model.scripted": "Scripted",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
