"""What is known about a model: how its tokens are counted, how much it takes, how much it may answer."""

from __future__ import annotations

import msgspec


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One model, or what is assumed of one that is not `known`."""

    name: str
    provider: str
    tokenizer: str
    window: int
    reply_reserve: int
    known: bool = True

    @property
    def input_budget(self) -> int:
        """Tokens that a request may have, so that there is room for the answer."""
        return self.window - self.reply_reserve
