"""Faults between a run and its bucket: they cost time only, and what is visible is whole at every moment."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path

import pytest

from fineweb_shards.storage import bucket_client as stores
from tests.support import layout_reference, runs
from tests.support.bucket_server import Door, Fault, forget_everything, make_bucket, use_small_parts
from tests.support.bucket_view import BucketView, Watcher, check_finished
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import Wanted
from tests.support.promises import Tries

DOCUMENTS = make_documents(24, seed=97)
# What goes wrong.
KINDS = [
    Fault(status=500, code="InternalError", times=2),
    Fault(status=503, code="SlowDown", times=2),
    Fault(resets=True, times=2),
    Fault(stall_seconds=2.5),  # silence that is longer than the client waits
    Fault(after=True),  # done, and the answer is lost
    Fault(after=True, status=500, code="InternalError"),  # done, and the answer says that it is not
    Fault(status=400, code="RequestTimeout"),
    Fault(status=403, code="ExpiredToken"),
    Fault(status=429, times=2),
]
# What it happens to.
STEPS = {
    "the lock": Fault("PUT", "lock.json"),
    "removing the lock": Fault("DELETE", "lock.json"),
    "the first manifest": Fault("PUT", "manifest.json"),
    "a later manifest": Fault("PUT", "manifest.json", skip=2),
    "a small object": Fault("PUT", r"idx$"),
    "creating an upload": Fault("POST", r"\?uploads"),
    "a part": Fault("PUT", "partNumber=2"),
    "completing an upload": Fault("POST", "uploadId=", skip=1),
    "a look at the result": Fault("HEAD", r"(npy|bin|idx)$"),
    "a listing": Fault("GET", "list-type", skip=3),
    "reading a part": Fault("GET", r"parts/[^?]*/\d+$"),
    "deleting a part": Fault("DELETE", "parts/"),
}
LAYOUTS = [Wanted("megatron", 4000, val_tokens=5000), Wanted("llm.c", 4000, val_ratio=Fraction(2, 5))]


@pytest.fixture
def impatient(door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small parts, short waits, and credentials of a profile, which can be renewed while a run waits."""
    use_small_parts(monkeypatch)
    monkeypatch.setattr(stores, "STALL_SECONDS", 1)
    monkeypatch.setattr(stores, "ANSWER_SECONDS", 1)
    profile = tmp_path / "credentials"
    profile.write_text("[default]\naws_access_key_id = some\naws_secret_access_key = thing\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    forget_everything(monkeypatch)


def faults() -> list[tuple[str, Fault]]:
    """Every kind at every step, in an order in which the first few are of all kinds and steps."""
    steps = list(STEPS.items())
    # S3 begins to answer before all parts are put together, and may find out later that they can't be.
    late = dataclasses.replace(STEPS["completing an upload"], status=200, code="InternalError")
    pairs = [("completing an upload", late)]
    for turn in range(len(steps)):
        for number, kind in enumerate(KINDS):
            name, step = steps[(turn + number) % len(steps)]
            pairs.append((name, dataclasses.replace(kind, method=step.method, path=step.path, skip=step.skip)))
    return pairs


@pytest.mark.promise("a bucket never shows half a shard; only one writer wins")
def test_a_fault_costs_time_only(
    bucket_environment: str, door: Door, impatient: None, tmp_path: Path, tries: Tries
) -> None:
    """Every kind of fault at every step of publishing: the same files, nothing torn, nothing left over."""
    source = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    expected = [layout_reference.files(DOCUMENTS, wanted) for wanted in LAYOUTS]
    every = faults()
    for attempt in tries(2, len(every)):
        name, fault = every[attempt]
        happens = fault.times
        layout = 0 if name == "a small object" else attempt % len(LAYOUTS)  # only the first one has any
        out = f"{make_bucket(bucket_environment)}/folder"
        view, scratch = BucketView(bucket_environment, out), tmp_path / str(attempt)
        watcher = Watcher(view, door, expected[layout])
        door.faults = [fault]
        settings = {"engine": "tiktoken", "max_outage": 40, "scratch": str(scratch)}
        runs.build_inline(out, source, **settings, **LAYOUTS[layout].settings())
        described = f"{name}: {fault}"
        assert watcher.torn == [], described
        assert fault.times < happens, f"did not happen: {described}"
        check_finished(view, scratch, expected[layout])
