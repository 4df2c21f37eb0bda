"""Thousands of files: few requests before the first token, and fewer for a resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import forked, reference, runs
from tests.support.fourteen_files import REPO, SHARD_TOKENS, documents_of, environment, parquet_of
from tests.support.promises import Tries
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository, many_files

CONTENTS = 3
TOKENS = 3 * SHARD_TOKENS
SAMPLE_350BT = {f"sample/350BT/{n:03d}_00000.parquet": parquet_of(n % CONTENTS, 20) for n in range(472)}


@pytest.mark.promise("the hub's quota is kept, not hit")
def test_a_large_listing_takes_few_requests(home: Path, tmp_path: Path, tries: Tries) -> None:
    """At most 30 of the API for a whole run; a resume lists nothing, because the manifest has every file."""
    dumps = many_files([parquet_of(number, 20) for number in range(CONTENTS)])
    contents = [documents_of(number % CONTENTS) for number in range(CONTENTS * 8)]
    stream = reference.stream(text for documents in contents for text in documents)[:TOKENS]
    expected = reference.shard_files(stream, SHARD_TOKENS)
    repository = Repository(REPO, {**dumps, **SAMPLE_350BT})
    for number in tries(1, 2):
        name, out = ("default", "sample-350BT")[number], tmp_path / str(number)
        words = ["build", "--dataset", REPO, "--name", name, "--out", str(out), "--workers", "2"]
        words += ["--shard-tokens", str(SHARD_TOKENS), "--max-tokens", str(TOKENS)]
        with StandInHub([repository], cdn=True) as hub:
            done = forked.run_command(*words, **environment(hub, home))
            assert done.returncode == 0, done.stderr
            assert runs.shards_in(out) == expected
            first = hub.api_requests
            assert first <= 30
            (out / sorted(expected)[-1]).unlink()
            hub.clear_requests()
            again = forked.run_command(*words, **environment(hub, home))
            assert again.returncode == 0, again.stderr
            assert runs.shards_in(out) == expected
            asked = [record.path for record in hub.requests_of("api")]
            assert not [path for path in asked if "/tree/" in path or "/paths-info/" in path]
            assert len(asked) < first
