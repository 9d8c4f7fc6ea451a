"""The stores' contract as a pytest suite: what every backend promises, base and declared capabilities.

Subclass `StoreContract` in a test module and give it a fixture `make_store`, a function that opens a store under a
clock. The same `place` is the same store again, where it is durable or shared; `options` go to `open_store`:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def make_store(self, tmp_path):
            def make(clock, place, **options):
                return holdfast.open_store(f"mystore:///{tmp_path}/{place}", clock=clock, **options)
            return make

Nothing is skipped: a capability is declared, and then it works, or it is refused as unsupported; a search finds
nothing where none is declared. `scale` multiplies the volumes of the tests that draw at random.
"""

from __future__ import annotations

from holdfast.testing.store_contract.lifetimes import LifeContract
from holdfast.testing.store_contract.list import ListContract, PlaceContract
from holdfast.testing.store_contract.search import GraphContract, SearchContract
from holdfast.testing.store_contract.values import ValueContract, VersionContract

__all__ = ["StoreContract"]


class StoreContract(
    ValueContract, VersionContract, LifeContract, ListContract, GraphContract, SearchContract, PlaceContract
):
    """Everything a store promises."""
