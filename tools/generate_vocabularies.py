"""Write the vocabularies in src/holdfast/model/vocabularies from those that splintr holds.

    python tools/generate_vocabularies.py

A file is a hash table, read as it is by model/vocabulary.py. It begins with 65,537 offsets of four bytes, least byte
first: bucket n lies between offset n and the next one. Bucket n holds every token whose CRC-32 ends in the 16 bits of
n, in order of rank: one byte with the token's length, three with its rank, least byte first, and its bytes.
"""
# ruff: noqa: INP001

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import splintr

TARGET = Path(__file__).parent.parent / "src" / "holdfast" / "model" / "vocabularies"
RANKS = {"o200k_base": 199_998, "cl100k_base": 100_256}
"""The number of ordinary tokens in each encoding: special tokens are never counted as such."""
BUCKETS = 1 << 16


def build_table(name: str) -> bytes:
    """Return the file of an encoding."""
    loaded = splintr.Tokenizer.from_pretrained(name)
    buckets = [bytearray() for _ in range(BUCKETS)]
    for rank in range(RANKS[name]):
        token = loaded.decode_token_bytes(rank)
        buckets[zlib.crc32(token) % BUCKETS] += bytes((len(token),)) + rank.to_bytes(3, "little") + token
    offset = 4 * (BUCKETS + 1)
    offsets = [offset]
    for bucket in buckets:
        offset += len(bucket)
        offsets.append(offset)
    return b"".join((*(each.to_bytes(4, "little") for each in offsets), *buckets))


if __name__ == "__main__":
    for encoding in RANKS:
        table = build_table(encoding)
        (TARGET / f"{encoding}.ranks").write_bytes(table)
        sys.stdout.write(f"{encoding}: {len(table):,} bytes, CRC-32 {zlib.crc32(table):#010x}\n")
