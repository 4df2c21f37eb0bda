"""`verify` and `inspect` of folders in buckets: what they say of a folder on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.storage.bucket import Bucket
from tests.support import inline, reference, runs
from tests.support.bucket_folders import make_parts, upload_folder
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl

DOCUMENTS = [text for text in make_documents(60, seed=29) if text and "<|endoftext|>" not in text]
LAYOUTS = ["build-nanogpt", "megatron", "nanogpt"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished folder of some layouts, with an index."""
    folder = tmp_path_factory.mktemp("made")
    path = write_jsonl(folder / "a.jsonl", DOCUMENTS)
    for layout in LAYOUTS:
        runs.build_inline(
            folder / layout, path, layout=layout, shard_tokens=1500, val_tokens=1500, index=layout == LAYOUTS[0]
        )
    return {layout: folder / layout for layout in LAYOUTS}


@pytest.fixture
def url(bucket_url: str) -> str:
    return f"{bucket_url}/some/out"


@pytest.mark.full(but=["megatron"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_verify_finds_what_was_changed(made: dict[str, Path], url: str, layout: str) -> None:
    """Nothing in a folder that is right; then an object with another byte, one that is too short, one that is missing,
    a sidecar that does not fit and one that nobody knows, each by its name."""
    bucket = upload_folder(made[layout], url)
    right = inline.run_command("verify", url)
    assert right.returncode == 0, right.stderr
    assert f"{url}: " in right.stdout
    assert "complete." in right.stdout
    names = sorted(runs.outputs_in(made[layout]))
    for number, name in enumerate({Path(name).suffix + Path(name).parent.name: name for name in names}.values()):
        data = (made[layout] / name).read_bytes()
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 4
        for wrong in (bytes(flipped), data[:-2], None)[number:]:
            if wrong is None:
                bucket.delete([name])
            else:
                bucket.overwrite(name, wrong)
            done = inline.run_command("verify", url)
            assert done.returncode == 7
            assert name in done.stderr
        bucket.overwrite(name, data)
    if layout == "build-nanogpt":
        bucket.overwrite("edufineweb_train_000099.npy", b"")
        done = inline.run_command("verify", url)
        assert done.returncode == 7
        assert "edufineweb_train_000099.npy: not in the manifest" in done.stderr


def test_verify_an_unfinished_file(made: dict[str, Path], url: str) -> None:
    """Its segments are parts; the damaged one is named with its place."""
    folder = made["nanogpt"]
    bucket = upload_folder(folder, url)
    data = json.loads((folder / "manifest.json").read_text())
    records = data["shards"][:-1]
    shown = {**data, "shards": records, "complete": False, "totals": {}}
    shown.pop("checksum")
    bucket.overwrite("manifest.json", json.dumps(shown).encode())
    offsets = [record["offset"] for record in data["shards"] if record["name"] == "train.bin"]
    make_parts(bucket, folder, "train.bin", offsets)
    done = inline.run_command("verify", url)
    assert done.returncode == 0, done.stderr
    assert "so far" in done.stdout
    part = f".fineweb-shards/parts/train.bin/{offsets[1]:016}"
    found = bucket.read(part)
    assert found is not None
    bucket.overwrite(part, found[0][:-2] + b"\0\0")
    done = inline.run_command("verify", url)
    assert done.returncode == 7
    assert f"train.bin: SHA-256 of {len(found[0]):,} bytes from {offsets[1]:,} on" in done.stderr


def test_a_folder_without_a_build_is_said(bucket_url: str) -> None:
    """By its address, for every verb that needs one."""
    for verb in ("verify", "status", "report"):
        done = inline.run_command(verb, f"{bucket_url}/nothing")
        assert done.returncode == 5
        assert f"{bucket_url}/nothing: nothing is built here" in done.stderr
    done = inline.run_command("inspect", f"{bucket_url}/nothing")
    assert done.returncode == 3
    assert f"{bucket_url}/nothing: there is no token file here" in done.stderr
    fields = ("checksum", "vocabulary", "settings", "commit", "versions", "totals", "effort")
    Bucket(f"{bucket_url}/broken").overwrite("manifest.json", json.dumps(dict.fromkeys(fields)).encode())
    done = inline.run_command("verify", f"{bucket_url}/broken")
    assert done.returncode == 7
    assert f"{bucket_url}/broken/manifest.json: the manifest is damaged" in done.stderr


@pytest.mark.full(but=["megatron-True"])
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inspect_says_what_it_says_of_the_folder(
    made: dict[str, Path], url: str, tmp_path: Path, layout: str, bare: bool
) -> None:
    """Figures, documents, a search, of a folder and of a file, with our manifest and without."""
    folder = made[layout]
    if bare:
        folder = tmp_path / "bare"
        folder.mkdir()
        for name, data in runs.outputs_in(made[layout]).items():
            if "/" not in name:
                (folder / name).write_bytes(data)
    upload_folder(folder, url)
    word = next(word for text in DOCUMENTS for word in text.split() if word.isalpha())
    name = max(n for n in runs.outputs_in(folder) if "train" in n and n.endswith((".npy", ".bin")) and "/" not in n)
    for flags in (["--json"], [], ["--document", "3", "--json"], ["--random", "--seed", "2", "--json"],
                  ["--grep", word, "--json"]):  # fmt: skip
        here, there = (inline.run_command("inspect", folder, *flags), inline.run_command("inspect", url, *flags))
        assert there.returncode == here.returncode == 0, there.stderr
        assert there.stdout == here.stdout
    file_here, file_there = (inline.run_command("inspect", f"{place}/{name}") for place in (folder, url))
    assert file_there.stdout == file_here.stdout
    assert "tokens" in file_there.stdout
    if not bare:  # then documents are numbered in the order of the build
        shown = inline.run_command("inspect", url, "--document", "5", "--json")
        assert json.loads(shown.stdout)["text"] == DOCUMENTS[5]


def test_inspect_an_object_of_another_program(url: str, tmp_path: Path) -> None:
    """By its name; what is no file of tokens is said."""
    bucket = Bucket(url)
    tokens = np.array(reference.encode("hello world"), "<u2")
    bucket.overwrite("theirs/train.bin", tokens.tobytes())
    done = inline.run_command("inspect", f"{url}/theirs/train.bin", "--document", "0")
    assert "hello world" in done.stdout
    bucket.overwrite("a.parquet", b"PAR1" + b"\0" * 100)
    refused = inline.run_command("inspect", f"{url}/a.parquet")
    assert refused.returncode == 3
    assert f"{url}/a.parquet: has neither a known header" in refused.stderr


MEMORY = """
import sys
from fineweb_shards.commands.main import main
sys.argv = ["fineweb-shards", *sys.argv[1:]]
try:
    main()
finally:
    with open("/proc/self/status") as file:
        print([line for line in file if line.startswith("VmHWM")][0].split()[1])
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_a_file(url: str, tmp_path: Path) -> None:
    """Of 100 MB a few ranges are in memory at a time."""
    peaks = []
    for tokens in (1000, 50_000_000):
        np.save(tmp_path / "x.npy", np.zeros(tokens, np.uint16))
        Bucket(url).upload(tmp_path / "x.npy", f"{tokens}.npy")
        words = [sys.executable, "-c", MEMORY, "inspect", f"{url}/{tokens}.npy"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert f"{tokens:,}" in done.stdout
        peaks.append(int(done.stdout.splitlines()[-1]) * 1024)
    assert peaks[1] - peaks[0] < 60 * 2**20, peaks
