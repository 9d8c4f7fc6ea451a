"""A model on loopback for the examples that use a provider's SDK."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import openai
import pytest

from examples.loopback import scripted_server
from tests.model_server import ModelServer


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with scripted_server() as model:
        yield model
        assert model.problems == [], "a real provider would have refused this"


@pytest.fixture(scope="module")
def openai_client(server: ModelServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="none") as client:
        yield client


@pytest.fixture(scope="module")
def anthropic_client(server: ModelServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url.removesuffix("/v1"), api_key="none") as client:
        yield client


@pytest.fixture(autouse=True)
def _no_model_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have a key, and pays nothing for them."""
    monkeypatch.delenv("MODEL", raising=False)
    monkeypatch.delenv("KEY", raising=False)
