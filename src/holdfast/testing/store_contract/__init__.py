"""The stores' contract as a pytest suite: the promises of every backend, basic and by declared capability.

Subclass `StoreContract` in a test module and give it a fixture `make_store`, a function that opens a store under a
clock. The same `place` opens the same store again, where it is durable or shared; `options` go to `open_store`:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def make_store(self, tmp_path):
            def make(clock, place, **options):
                return holdfast.open_store(f"mystore:///{tmp_path}/{place}", clock=clock, **options)
            return make

No test is skipped: a declared capability must work, and an undeclared one must be refused as unsupported; an
undeclared search finds nothing. `scale` multiplies the volumes of the randomised tests.
"""

from __future__ import annotations

from holdfast.testing.store_contract.lifetimes import LifetimeContract
from holdfast.testing.store_contract.list import CapabilityContract, ListContract
from holdfast.testing.store_contract.search import GraphContract, SearchContract
from holdfast.testing.store_contract.values import ValueContract, VersionContract

__all__ = ["StoreContract"]


class StoreContract(
    ValueContract, VersionContract, LifetimeContract, ListContract, GraphContract, SearchContract, CapabilityContract
):
    """The whole contract of a store."""
