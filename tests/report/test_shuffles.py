"""The report of a shuffle: which one it is, and two passes that look like one job."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import load_manifest
from fineweb_shards.report.contents import gather_facts, list_parts, list_runs, make_headline
from fineweb_shards.report.page import render_page
from fineweb_shards.watching.run_files import Heartbeat, Invocation
from tests.support import inline, reference, runs
from tests.support.documents import make_documents
from tests.support.example_run import SNAPSHOT
from tests.support.inputs import write_jsonl
from tests.support.shuffle_steps import interrupted_in, small_steps

DOCUMENTS = [text for text in make_documents(120, seed=95) if text]
TOKENS = len(reference.stream(DOCUMENTS))


def test_a_shuffle_that_was_resumed(tmp_path: Path) -> None:
    """Seed, passes and piles are among the settings; what the runs have made and kept adds up over both passes."""
    out, path = tmp_path / "out", write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    words = ["build", "--input", path, "--out", out, "--shuffle", 7, "--shard-tokens", 2000, "--batch-bytes", 4096]
    with small_steps():
        for stop in (1, 2):
            with interrupted_in(stop):
                assert inline.run_command(*words).returncode == 130
            manifest = load_manifest(out)
            assert manifest is not None
            page = re.sub(r"\s+", " ", render_page(gather_facts(FolderStore(out))))
            assert f"pass {stop} of 2: {['piles', 'shards'][stop - 1]}; {manifest.piled_tokens:,} tokens are in" in page
            assert "tokens/s while working" not in page
        assert inline.run_command(*words).returncode == 0
    facts = gather_facts(FolderStore(out))
    page = render_page(facts)
    assert "by seed 7, in two passes, through 3 piles" in page
    assert "Tokens count in both passes of the shuffle" in page
    assert "tokens/s while working" in page
    found = facts.history.runs
    assert [run.first_tokens for run in found] == sorted(run.first_tokens for run in found)
    assert found[0].first_tokens == 0
    assert found[1].first_tokens > 0
    assert found[-1].last_tokens == 2 * TOKENS
    assert list_runs(facts) is not None


def test_a_shuffled_mix_has_no_chart_of_its_parts(tmp_path: Path) -> None:
    """Each shard is a sample of all of them; the table is there."""
    out = tmp_path / "out"
    paths = {weight: write_jsonl(tmp_path / f"{weight}.jsonl", DOCUMENTS) for weight in (1, 2)}
    parts = tuple({"input": (str(path),), "weight": weight} for weight, path in paths.items())
    runs.build_inline(out, parts=parts, shuffle=7, shard_tokens=2000)
    found = list_parts(gather_facts(FolderStore(out)))
    assert found is not None
    assert found["chart"] is None
    assert len(found["table"].rows) == 2
    assert "Parts of the mix" in render_page(gather_facts(FolderStore(out)))


def test_a_run_at_work_names_its_pass(tmp_path: Path) -> None:
    """Its tokens are those of the pass, the share is of both."""
    out = tmp_path / "out"
    words = ["--input", write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), "--out", out, "--shuffle", 7]
    with small_steps(), interrupted_in(1):
        inline.run_command("build", *words)
    beat = replace(SNAPSHOT, pass_number=1)
    Heartbeat(time.time(), Invocation("build", "", 1, time.time()), beat).save(out)
    figures = dict(make_headline(gather_facts(FolderStore(out), alive=True))["figures"])
    assert figures["tokens so far in pass 1 of 2"] == "3.71M (27.5 % of both)"
