"""A folder in which a run has begun and nothing is finished: it binds nobody, and what is not ours stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fineweb_shards.errors import ChangedError, OutputError
from fineweb_shards.layouts import get_layout
from fineweb_shards.layouts.base import choose_digits
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import load_manifest
from fineweb_shards.output.manifest_file import save_manifest
from fineweb_shards.output.resume_rules import move_limit
from fineweb_shards.run.config import Config
from fineweb_shards.run.job import pinned_commit
from tests.support import reference, runs
from tests.support.inputs import write_text

WHERE = {"dataset": "me/texts", "name": "small"}


def begin(out: Path, **settings: object) -> Config:
    """The folder as a run leaves it that was stopped in its first seconds."""
    config = replace(Config(out=str(out)), **settings)  # type: ignore[arg-type]
    (out / ".fineweb-shards").mkdir(parents=True, exist_ok=True)
    save_manifest(
        runs.manifest_of(config.fingerprint(), [], commit="c0ffee" if config.dataset else None), FolderStore(out)
    )
    return config


def test_another_revision_is_the_one_that_is_taken(tmp_path: Path) -> None:
    """The commit of the first try is only kept for the same dataset and revision."""
    config = begin(tmp_path / "out", **WHERE)
    begun = load_manifest(tmp_path / "out")
    assert begun is not None
    assert pinned_commit(config, begun.parts[0], has_work=False) == "c0ffee"
    assert pinned_commit(replace(config, revision="newer"), begun.parts[0], has_work=False) is None
    assert pinned_commit(replace(config, dataset="me/others"), begun.parts[0], has_work=False) is None


def test_other_settings_do_not_overwrite_what_is_not_ours(tmp_path: Path) -> None:
    """A shard of somebody else's in the folder is refused, as in one without a manifest."""
    path = write_text(tmp_path / "a.txt", ["one", "two"])
    out = tmp_path / "out"
    begin(out, layout="plain")
    foreign = out / "edufineweb_val_000000.npy"
    foreign.write_bytes(b"my only copy")
    with pytest.raises(OutputError, match="edufineweb_val_000000"):
        runs.build_inline(out, path, shard_tokens=2)
    assert foreign.read_bytes() == b"my only copy"


def test_finished_shards_still_bind(tmp_path: Path) -> None:
    """With one shard there, another setting is refused."""
    path = write_text(tmp_path / "a.txt", ["one", "two"])
    out = tmp_path / "out"
    runs.build_inline(out, path, shard_tokens=2)
    with pytest.raises(ChangedError, match="--shard-tokens was 2"):
        runs.build_inline(out, path, shard_tokens=3)


def test_an_index_is_not_taken_for_a_shard_behind_the_end(tmp_path: Path) -> None:
    """A shorter limit for an unfinished Megatron folder is not refused for the sake of our own index."""
    path = write_text(tmp_path / "a.txt", [f"document {i}" for i in range(40)])
    out = tmp_path / "out"
    runs.build_inline(out, path, layout="megatron", shard_tokens=20, max_tokens=60)
    manifest = load_manifest(out)
    assert manifest is not None
    unfinished = replace(manifest, complete=False, settings={**manifest.settings, "max_tokens": None})
    assert move_limit(unfinished, 90, FolderStore(out)).settings["max_tokens"] == 90


def test_a_stream_of_unknown_length_has_room_for_its_numbers() -> None:
    """A pipe is not stopped at its ten thousandth shard."""
    assert choose_digits(get_layout("plain"), 1000, None, exact=False) == 6
    assert choose_digits(get_layout("build-nanogpt"), 1000, None, exact=False) == 6
    assert choose_digits(get_layout("plain"), 1000, 5000, exact=True) == 4


def test_a_limit_moved_in_a_finished_folder_keeps_its_bytes(tmp_path: Path) -> None:
    """What was built up to a limit and then without one is the stream."""
    texts = [f"document {i}" for i in range(40)]
    path = write_text(tmp_path / "a.txt", texts)
    out = tmp_path / "out"
    runs.build_inline(out, path, shard_tokens=20, max_tokens=50)
    runs.build_inline(out, path, shard_tokens=20)
    assert runs.shards_in(out) == reference.shard_files(reference.stream(texts), 20)
