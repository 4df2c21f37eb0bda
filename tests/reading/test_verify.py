"""`verify` finds every damage and names the file."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.errors import OutputError
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.store import FoundFile
from fineweb_shards.reading.verify import verify_folder
from fineweb_shards.system.durable import FolderLock
from fineweb_shards.system.own_files import WORK_FOLDER
from tests.support import inline, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_parquet
from tests.support.promises import Tries


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    path = write_parquet(folder / "a.parquet", make_documents(60, seed=51))
    runs.build_inline(folder / "out", path, shard_tokens=3000)
    return folder / "out"


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "out")
    return tmp_path / "out"


def test_good_shards_have_no_damage(out: Path) -> None:
    """And every one of them was looked at."""
    seen: list[str] = []
    verdict = verify_folder(FolderStore(out), lambda record: seen.append(record.name))
    assert verdict.damages == []
    assert sorted(seen) == sorted(runs.shards_in(out))


@pytest.mark.promise("verify finds all damage")
def test_every_single_flipped_bit_is_found(out: Path, tries: Tries) -> None:
    """In the header, in the first and the last token, and at random places."""
    chooser = random.Random(5)
    names = sorted(runs.shards_in(out))
    for number in tries(60, 500):
        path = out / chooser.choice(names)
        data = bytearray(path.read_bytes())
        place = [0, 127, 128, len(data) - 1, chooser.randrange(len(data))][min(number, 4)]
        data[place] ^= 1 << chooser.randrange(8)
        good = path.read_bytes()
        path.write_bytes(data)
        damages = verify_folder(FolderStore(out)).damages
        path.write_bytes(good)
        assert len(damages) == 1
        assert damages[0].startswith(path.name)


@pytest.mark.promise("verify finds all damage")
def test_every_truncation_is_found(out: Path, tries: Tries) -> None:
    """However little, or much, is missing."""
    path = out / "edufineweb_train_000001.npy"
    good = path.read_bytes()
    sizes = [0, 1, 127, 128, 129, len(good) - 1, len(good) - 2]
    for number in tries(10, 50):
        size = sizes[number] if number < len(sizes) else random.Random(number).randrange(len(good))
        path.write_bytes(good[:size])
        (damage,) = verify_folder(FolderStore(out)).damages
        assert damage.startswith("edufineweb_train_000001.npy: ")


@pytest.mark.promise("verify finds all damage")
def test_missing_extra_and_renamed_files_are_found(out: Path) -> None:
    """A loader would trip over each of them."""
    (out / "edufineweb_train_000001.npy").rename(out / "edufineweb_train_000777.npy")
    verdict = verify_folder(FolderStore(out))
    assert verdict.damages == ["edufineweb_train_000001.npy: missing"]
    assert verdict.untracked == ["edufineweb_train_000777.npy"]


def test_a_file_that_does_not_belong_there_is_not_called_damaged(out: Path) -> None:
    """It fails `verify`, because a loader would read it; no build remakes it, so it is to be moved away."""
    stray = out / "edufineweb_train_000777.npy"
    stray.write_bytes(b"extra")
    done = inline.run_command("verify", out)
    assert done.returncode == 7
    assert f"{stray.name}: not in the manifest, but a loader would read it" in done.stderr
    assert "1 file that does not belong there." in done.stderr
    assert "Move the files named above away" in done.stderr
    assert "damaged" not in done.stderr
    assert "again" not in done.stderr
    (out / "edufineweb_train_000001.npy").write_bytes(b"short")
    done = inline.run_command("verify", out)
    assert "1 damaged file and 1 file that does not belong there." in done.stderr
    assert "Move files that are not in the manifest away" in done.stderr
    assert "same build, which remakes them" in done.stderr


def test_a_finished_build_warns_of_files_that_do_not_belong_there(out: Path, made: Path) -> None:
    """A build that has nothing to do names them, because a loader would read them; its exit code is 0."""
    words = ("build", made.parent / "a.parquet", "--out", out, "--shard-tokens", "3000")
    assert "would open" not in inline.run_command(*words).stdout
    (out / "edufineweb_train_000777.npy").write_bytes(b"extra")
    done = inline.run_command(*words)
    assert done.returncode == 0
    assert "Nothing to do" in done.stdout
    assert "would open: edufineweb_train_000777.npy" in " ".join(done.stdout.split())


@pytest.mark.promise("verify finds all damage")
@pytest.mark.parametrize(("field", "value"), [("documents", 7), ("sha256", "0" * 64)])
def test_a_doctored_manifest_is_found(out: Path, field: str, value: object) -> None:
    """What the records of a manifest can't tell of each other is compared with the files."""
    data = json.loads((out / "manifest.json").read_text())
    data["shards"][1][field] = value
    data["totals"]["documents"] = sum(record["documents"] for record in data["shards"])
    runs.write_manifest(out, data)
    (damage,) = verify_folder(FolderStore(out)).damages
    assert damage.startswith("edufineweb_train_000001.npy: ")


@pytest.mark.promise("nothing from data is executed or followed")
def test_nothing_in_a_shard_is_executed_or_believed(out: Path) -> None:
    """A pickle in place of a shard is damage and not run; a header that claims terabytes is not believed."""
    path = out / "edufineweb_train_000001.npy"
    good = path.read_bytes()
    flag = out / "executed"

    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (flag,)  # type: ignore[return-value]

    for claim in ("object", "terabytes"):
        if claim == "object":
            buffer = io.BytesIO()
            np.save(buffer, np.array([Payload()], dtype=object), allow_pickle=True)
            data = buffer.getvalue()
        else:
            data = good.replace(b"'shape': (", b"'shape': (9999999", 1)
        path.write_bytes(data[: len(good)].ljust(len(good), b"\0"))
        (damage,) = verify_folder(FolderStore(out)).damages
        assert damage.startswith(path.name)
        assert not flag.exists()


@pytest.mark.promise("verify finds all damage")
def test_a_token_outside_the_vocabulary_is_found(out: Path) -> None:
    """Even where the hash is right."""
    import hashlib

    path = out / "edufineweb_train_000001.npy"
    data = bytearray(path.read_bytes())
    data[200:202] = b"\xff\xff"
    path.write_bytes(data)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["shards"][1]["sha256"] = hashlib.sha256(data).hexdigest()
    runs.write_manifest(out, manifest)
    (damage,) = verify_folder(FolderStore(out)).damages
    assert "65535 is outside the vocabulary" in damage


def test_a_folder_without_manifest_is_told(tmp_path: Path) -> None:
    """Nothing was built there, or not yet, or there is no such folder: with the next step."""
    with pytest.raises(OutputError, match=r"nothing is built here: there is no manifest\.json") as refused:
        verify_folder(FolderStore(tmp_path))
    assert f"build --input PATH --out {tmp_path}" in refused.value.hint
    with pytest.raises(OutputError, match="no such folder"):
        verify_folder(FolderStore(tmp_path / "nowhere"))
    (tmp_path / WORK_FOLDER).mkdir()
    with pytest.raises(OutputError, match="nothing is built here yet"):
        verify_folder(FolderStore(tmp_path))


def test_an_input_folder_is_told_from_an_output_folder(tmp_path: Path) -> None:
    """Nobody is advised to build into a folder that holds other files, such as the input."""
    (tmp_path / "a.parquet").touch()
    with pytest.raises(OutputError, match=r"there is no manifest\.json among its files") as refused:
        verify_folder(FolderStore(tmp_path))
    assert refused.value.hint == "Name the folder that was the --out of a build, not its input."


@pytest.mark.promise("verify finds all damage")
def test_work_that_was_not_finished_is_no_damage(out: Path) -> None:
    """A shard that has its name and no record yet; any other extra shard is damage still."""
    names = sorted(runs.shards_in(out))
    runs.forget_after(out, 2)
    for name in names[1:-1]:
        if name != "edufineweb_train_000002.npy" and name != "edufineweb_train_000001.npy":
            (out / name).unlink()
    verdict = verify_folder(FolderStore(out))
    assert verdict.damages == []
    assert verdict.unfinished == ["edufineweb_train_000002.npy"]
    done = inline.run_command("verify", out)
    assert done.returncode == 0
    assert "edufineweb_train_000002.npy: not finished: left by a stopped run" in done.stdout
    words = "2 shards, 6,000 tokens verified, so far: the build is not finished; rerun its command to resume."
    assert words in done.stdout
    (out / "edufineweb_train_000777.npy").write_bytes(b"extra")
    assert verify_folder(FolderStore(out)).untracked == ["edufineweb_train_000777.npy"]


def test_a_run_that_was_killed_had_named_several(out: Path) -> None:
    """Shards that are sealed together, hundreds if they are small, are named one after the other, and then recorded:
    all of them are made again, and none is damage, unless one before it is missing."""
    names = recorded(out)
    assert len(names) > 5
    runs.forget_after(out, 2)
    verdict = verify_folder(FolderStore(out))
    assert (verdict.damages, verdict.untracked, verdict.unfinished) == ([], [], names[2:])
    (out / names[4]).unlink()
    verdict = verify_folder(FolderStore(out))
    assert (verdict.untracked, verdict.unfinished) == (names[5:], names[2:4])


def recorded(folder: Path) -> list[str]:
    """The names in a folder's manifest, in the order of the stream."""
    return [record["name"] for record in json.loads((folder / "manifest.json").read_text())["shards"]]


@pytest.fixture
def built_meanwhile(made: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two shards, in which a build goes to its end as soon as somebody has read the manifest and looks
    for the shards."""
    for name in recorded(out)[2:]:
        (out / name).unlink()
    runs.forget_after(out, 2)
    find_all, began = FolderStore.find_all, []

    def build_and_find(store: FolderStore, names: Iterable[str]) -> dict[str, FoundFile]:
        found = find_all(store, names)
        if not began:
            began.append(True)
            runs.build_inline(out, made.parent / "a.parquet", shard_tokens=3000)
        return found

    monkeypatch.setattr(FolderStore, "find_all", build_and_find)
    return out


def test_a_build_beside_it_is_no_damage(built_meanwhile: Path, made: Path) -> None:
    """Shards that were named after the manifest was read are in the manifest that is there now."""
    verdict = verify_folder(FolderStore(built_meanwhile))
    assert runs.shards_in(built_meanwhile) == runs.shards_in(made)
    assert (verdict.damages, verdict.untracked, verdict.unfinished) == ([], [], [])
    assert verdict.manifest.shard_count == 2  # what was checked


def test_damage_beside_a_build_is_found(built_meanwhile: Path) -> None:
    """A shard that is damaged, and one that does not belong there, whatever the build has made meanwhile; other shards
    are not mentioned."""
    name = recorded(built_meanwhile)[0]
    path = built_meanwhile / name
    path.write_bytes(path.read_bytes()[:-2] + b"\0\0")
    (built_meanwhile / "edufineweb_train_000777.npy").write_bytes(b"extra")
    verdict = verify_folder(FolderStore(built_meanwhile))
    assert [damage.partition(":")[0] for damage in verdict.damages] == [name]
    assert verdict.untracked == ["edufineweb_train_000777.npy"]


def test_while_a_build_is_at_work_nobody_is_told_to_delete(out: Path) -> None:
    """Whoever deletes a shard that a run goes on with has to build it again; and a build that is not finished is not
    told to be started."""
    runs.forget_after(out, 2)
    with FolderLock(out):
        done = inline.run_command("verify", out)
        assert done.returncode == 0
        assert done.stdout.endswith("6,000 tokens verified, so far: a build is running here.\n")
        assert "not finished: the running build will finish it" in done.stdout
        (out / recorded(out)[0]).write_bytes(b"broken")
        done = inline.run_command("verify", out)
    assert done.returncode == 7
    assert "elete" not in done.stderr
    assert "A build is running here: stop it, or wait for its end, and verify again." in done.stderr


@pytest.mark.parametrize("change", [b"xx", None], ids=["longer", "shorter"])
def test_an_index_of_another_length_is_made_again(tmp_path: Path, change: bytes | None) -> None:
    """By the next build, as `verify` advises."""
    path = write_parquet(tmp_path / "a.parquet", make_documents(60, seed=51))
    runs.build_inline(tmp_path / "out", path, layout="megatron")
    expected = runs.outputs_in(tmp_path / "out")
    index = tmp_path / "out" / "fineweb_train_text_document.idx"
    index.write_bytes(index.read_bytes() + change if change else index.read_bytes()[:-2])
    assert verify_folder(FolderStore(tmp_path / "out")).damages
    runs.build_inline(tmp_path / "out", path, layout="megatron")
    assert runs.outputs_in(tmp_path / "out") == expected
