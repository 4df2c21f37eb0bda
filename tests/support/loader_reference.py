"""What the loader must give, in plain lists. Nothing here imports the code under test.

A shard is a list of ids. Only the random numbers are numpy's: `default_rng([seed, epoch])` says the order of shards,
`default_rng([seed, epoch, shard])` what happens inside one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

Ids = list[int]


def split_documents(shard: Ids, eot: int, *, eot_first: bool, mid_document: bool) -> tuple[Ids, list[Ids]]:
    """The rest of a document that began in the shard before, and the documents that begin here."""
    documents: list[Ids] = [[]]
    for token in shard:
        if token == eot and eot_first:
            documents.append([token])
        else:
            documents[-1].append(token)
            if token == eot:
                documents.append([])
    rest = documents.pop(0) if eot_first or mid_document else []
    return rest, [document for document in documents if document]


def cut_evenly(stream: Ids, length: int) -> list[Ids]:
    """Rows of `length` + 1 tokens, each beginning with the last token of the row before."""
    rows = [stream[begin : begin + length + 1] for begin in range(0, len(stream), length)]
    return [row for row in rows if len(row) == length + 1]


def cut_at_documents(documents: list[Ids], length: int) -> list[Ids]:
    """Rows of whole documents, the last one cut; the next row begins with the next document."""
    rows = []
    while documents:
        row = list(chain(*documents))[: length + 1]
        if len(row) == length + 1:
            rows.append(row)
        taken = 0
        while documents and taken < length:
            taken += len(documents[0])
            documents = documents[1:]
    return rows


def rows_of_shard(
    rest: Ids, documents: list[Ids], length: int, rng: np.random.Generator, *, aligned: bool, shuffle: str
) -> list[Ids]:
    """The rows of one shard in the order of an epoch; `shuffle` is rows, documents or nothing."""
    if shuffle == "documents":
        if not aligned and rest:
            documents, rest = [rest, *documents], []
        documents = [documents[i] for i in rng.permutation(len(documents))]
    rows = cut_at_documents(documents, length) if aligned else cut_evenly([*rest, *chain(*documents)], length)
    return [rows[i] for i in rng.permutation(len(rows))] if shuffle == "rows" else rows


def epoch_rows(
    shards: Sequence[Ids],
    length: int,
    *,
    eot: int,
    eot_first: bool,
    first_mid_document: bool = False,
    aligned: bool,
    shuffle: str = "",
    seed: int | None = None,
    epoch: int = 0,
    shards_in_order: bool = False,
) -> list[Ids]:
    """All rows of an epoch, of all shards."""
    order = list(range(len(shards)))
    if seed is not None and not shards_in_order:
        order = np.random.default_rng([seed, epoch]).permutation(len(shards)).tolist()
    rows = []
    for number in order:
        before = [*chain(*shards[:number])]
        mid_document = before[-1] != eot if before else first_mid_document
        rest, documents = split_documents(shards[number], eot, eot_first=eot_first, mid_document=mid_document)
        rng = np.random.default_rng([seed or 0, epoch, number])
        rows += rows_of_shard(rest, documents, length, rng, aligned=aligned, shuffle=shuffle)
    return rows


def batches_of_rank(rows: list[Ids], batch_size: int, rank: int, ranks: int) -> list[list[Ids]]:
    """Each rank in turn takes the next `batch_size` rows, as long as there are enough for all ranks."""
    step = batch_size * ranks
    firsts = range(rank * batch_size, len(rows) // step * step, step)
    return [rows[first : first + batch_size] for first in firsts]
