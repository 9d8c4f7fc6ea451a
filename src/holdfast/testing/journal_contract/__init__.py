"""The journal's contract as a pytest suite: the promises of every backend, basic and by declared capability.

Subclass `JournalContract` in a test module and give it a fixture `make_journal`, a function
without arguments that returns a new, empty journal each time it is called:

    class TestMyJournal(JournalContract):
        @pytest.fixture
        def make_journal(self, tmp_path):
            numbers = itertools.count()
            return lambda: MyJournal(tmp_path / f"{next(numbers)}.db")

No test is skipped: a declared capability must work, and an undeclared one must be refused as unsupported.
"""

from __future__ import annotations

from holdfast.testing.journal_contract.append import AppendContract
from holdfast.testing.journal_contract.feed import FeedContract
from holdfast.testing.journal_contract.fixtures import dump_projections, make_push, read_events
from holdfast.testing.journal_contract.maintenance import MaintenanceContract
from holdfast.testing.journal_contract.read import FindContract, ReadContract
from holdfast.testing.journal_contract.sessions import ConversationContract, SessionContract
from holdfast.testing.journal_contract.state import StateContract

__all__ = ["JournalContract", "dump_projections", "make_push", "read_events"]


class JournalContract(
    AppendContract,
    ReadContract,
    FindContract,
    FeedContract,
    ConversationContract,
    SessionContract,
    StateContract,
    MaintenanceContract,
):
    """The whole contract of a journal."""
