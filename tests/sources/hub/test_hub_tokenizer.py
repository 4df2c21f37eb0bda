"""A tokenizer from the hub: fetched before the run, kept in the folder, and never asked for again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support import forked, runs, vocabularies
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.standin_faults import ScriptedFaults, Status
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository

DOCUMENTS = make_documents(80, seed=3)


def environment(hub: StandInHub, home: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}


def tokens_in(folder: Path) -> list[int]:
    paths = sorted(folder.glob("*.npy"), key=lambda path: path.stem[-6:])
    return [token for path in paths for token in np.load(path).tolist()]


@pytest.mark.full
@pytest.mark.promise("another vocabulary is exact by its own reference, or refused")
def test_a_tokenizer_of_a_model(tmp_path: Path) -> None:
    """Its `tokenizer.json`, at the commit that is recorded. A resume needs no hub and no cache; a revision that is
    another one is refused."""
    tokenizer = vocabularies.llama3(tmp_path)
    content = (tmp_path / "llama3.json").read_bytes()
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    out = tmp_path / "out"
    words = ["build", path, "--shard-tokens", "3000", "--out", out, "--tokenizer"]
    model = Repository("someone/small-model", {"README.md": b"a model", "tokenizer.json": content})
    with StandInHub([model]) as hub:
        done = forked.run_command(*words, "someone/small-model", **environment(hub, tmp_path / "home"))
        assert done.returncode == 0, done.stderr
        assert tokens_in(out) == tokenizer.stream(DOCUMENTS)
        said = f"tokenizer  someone/small-model@{model.head}: {tokenizer.size:,} ids (uint16)"
        assert said in done.stderr + done.stdout
        asked = len(hub.requests)
        expected = runs.shards_in(out)
        runs.forget_after(out, 2)
        done = forked.run_command(*words, "someone/small-model", **environment(hub, tmp_path / "empty"))
        assert done.returncode == 0, done.stderr
        assert len(hub.requests) == asked
    assert runs.shards_in(out) == expected


@pytest.mark.full
def test_a_model_without_a_tokenizer_and_none_at_all(tmp_path: Path) -> None:
    """Each its sentence; a hub that stumbles is asked again."""
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS[:5])
    content = (vocabularies.llama3(tmp_path) and tmp_path / "llama3.json").read_bytes()
    bare = Repository("someone/weights", {"model.safetensors": b"weights"})
    good = Repository("someone/good", {"tokenizer.json": content})
    with StandInHub([bare, good]) as hub:
        settings = environment(hub, tmp_path / "home")
        words = ["build", path, "--out", tmp_path / "out", "--shard-tokens", "100M", "--tokenizer"]
        done = forked.run_command(*words, "someone/weights", **settings)
        assert (done.returncode, "it has no tokenizer file of a supported kind" in done.stderr) == (3, True)
        done = forked.run_command(*words, "someone/nothing", **settings)
        assert (done.returncode, "someone/nothing" in done.stderr) == (3, True)
        assert "Traceback" not in done.stderr
        hub.faults = [ScriptedFaults(on="resolve", script=[Status(503), Status(503)])]
        done = forked.run_command(*words, "someone/good", **settings)
        assert done.returncode == 0, done.stderr
