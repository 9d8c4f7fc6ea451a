"""The journal's contract as a pytest suite: what every backend promises, base and declared capabilities.

Subclass `JournalContract` in a test module and give it a fixture `make_journal`, a function
without arguments that returns a new, empty journal each time it is called:

    class TestMyJournal(JournalContract):
        @pytest.fixture
        def make_journal(self, tmp_path):
            numbers = itertools.count()
            return lambda: MyJournal(tmp_path / f"{next(numbers)}.db")

Nothing is skipped: a capability is declared, and then it works, or it is refused as unsupported.
"""

from __future__ import annotations

from holdfast.testing.contract_appending import AppendContract
from holdfast.testing.contract_conversations import ConversationContract
from holdfast.testing.contract_finding import FindContract
from holdfast.testing.contract_kit import dump, pushed, stored
from holdfast.testing.contract_reading import ReadContract
from holdfast.testing.contract_sessions import SessionContract
from holdfast.testing.contract_state import StateContract
from holdfast.testing.contract_whole import WholeContract

__all__ = ["JournalContract", "dump", "pushed", "stored"]


class JournalContract(
    AppendContract,
    ReadContract,
    FindContract,
    ConversationContract,
    SessionContract,
    StateContract,
    WholeContract,
):
    """Everything a journal promises."""
