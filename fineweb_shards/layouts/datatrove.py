"""Describe huggingface/datatrove: `{train|val}_{index:05d}.ds`.

The files have no header, and EOS (our EOT) comes after each document. Beside each file are a `.ds.index`, with the ends
of the documents, and a `.ds.metadata`, with a few lines of text. The readers open every `.ds` in a folder, so by
default everything is for training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fineweb_shards.layouts.base import Layout, quote_string
from fineweb_shards.layouts.sidecar import FileFacts, Sidecar, document_ends
from fineweb_shards.types import Positions
from fineweb_shards.vocabulary import Vocabulary


class DocumentEnds(Sidecar):
    """The `.ds.index`: where each document ends, in tokens, as uint64."""

    endings = "", ".index"

    def size_bytes(self, file: FileFacts) -> int:
        return 8 * file.ends

    def blocks(self, file: FileFacts, eots: Iterable[Positions]) -> Iterable[bytes]:
        return (ends.astype("<u8").tobytes() for ends in document_ends(file, eots))


class Metadata(Sidecar):
    """The `.ds.metadata`: `tokenizer|bytes per token`, the number of tokens, and the same in readable form."""

    endings = "", ".metadata"

    def size_bytes(self, file: FileFacts) -> int:
        return sum(map(len, self.blocks(file, ())))

    def blocks(self, file: FileFacts, eots: Iterable[Positions]) -> Iterable[bytes]:
        tokenizer = file.vocabulary.name.replace("|", "-")  # its readers split the line there
        yield f"{tokenizer}|{file.dtype.itemsize}\n{file.tokens}\n{_with_prefix(file.tokens)}T".encode()


class Datatrove(Layout):
    name = "datatrove"
    eot_first = False
    digits = 5
    suffix = ".ds"
    sidecars = (DocumentEnds(), Metadata())
    file_name = "{split}_{number}.ds"
    validates_first_shard = False
    pattern = r"(train|val)_\d{5,}\.ds(\.index|\.metadata)?"
    opened_pattern = r".*\.ds"

    def loader_lines(self, folder: str, names: Sequence[str], vocabulary: Vocabulary) -> list[str]:
        width_bytes = self.dtype(vocabulary).itemsize
        return [
            "from datatrove.utils.dataset import DatatroveFolderDataset",
            f'DatatroveFolderDataset({quote_string(folder)}, seq_len=2048, filename_pattern="train_*.ds",',
            f"    token_size={width_bytes})",
        ]


def _with_prefix(tokens: int) -> str:
    """Format a number like `humanize.metric`, with three digits and a metric prefix: `1.23 M`."""
    digits = len(str(tokens))
    for exponent in (digits - 1, digits):  # one more where rounding carries: 999,999 is 1.00 M
        thousands, tens = divmod(exponent, 3)
        shown = f"{tokens / 1000**thousands:.{2 - tens}f}"
        if float(shown) < 10 ** (tens + 1):
            break
    return f"{shown} {['', *'kMGTPE'][thousands]}"
