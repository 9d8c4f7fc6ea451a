"""The journal's own key: whoever has it open has the one that counts, and asks for it no more than it must."""

from __future__ import annotations

from pathlib import Path

import apsw

import holdfast
from bench.counting import counting
from holdfast.flow.journal import transfer
from holdfast.journal.sqlite.schema import meta_digest


def test_an_import_by_another_client_replaces_the_secret_of_an_empty_journal(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with holdfast.open("memory:") as full, holdfast.open(path) as one, holdfast.open(path) as two:
        full.session("s").append("Hello.")
        before, secret = one.env.journal.secret, full.env.journal.secret
        assert before == two.env.journal.secret != secret
        two.env.journal.restore(secret, transfer.read_items(full.env))
        assert one.env.journal.secret == two.env.journal.secret == secret
        with counting(one.env.journal) as counts:
            assert one.env.journal.secret == secret
        assert counts.statements == 0, "what was written under it cannot be had under another"


def test_a_secret_that_was_exchanged_in_the_file_is_found_by_whoever_has_it_open(tmp_path: Path) -> None:
    path, other = str(tmp_path / "a.db"), b"o" * 32
    with holdfast.open(path) as hf:
        hf.session("s").append("Hello.")
        assert hf.env.journal.secret != other
        apsw.Connection(path).execute(
            "UPDATE meta SET value = ?, digest = ? WHERE name = 'secret'", (other, meta_digest("secret", other))
        )
        assert [finding.where for finding in hf.journal.verify().findings if finding.kind == "meta"] == ["secret"]
