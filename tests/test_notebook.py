"""The library in a real notebook kernel: the example runs, the kernel stays as it was, and the stop button works."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards.output.manifest import load_manifest
from tests.support import runs

nbclient = pytest.importorskip("nbclient", reason="notebooks are executed by nbclient and ipykernel: make .venv/full")
nbformat = pytest.importorskip("nbformat")
jupyter_client = pytest.importorskip("jupyter_client")

ROOT = Path(__file__).parent.parent
pytestmark = [
    pytest.mark.full,
    # Of the clients of kernels, not ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# What a build could leave behind, as a text that can be compared.
STATE = """
import os, signal, sys, threading
print(repr((
    [str(signal.getsignal(number)) for number in signal.valid_signals()], signal.pthread_sigmask(0, []),
    os.nice(0), os.getcwd(), sorted(os.environ.items()), repr(sys.stdout), sys.excepthook, sys.unraisablehook,
    sorted(os.listdir("/proc/self/fd")), [thread.name for thread in threading.enumerate()],
)))
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Any]:
    """A kernel of this Python, in a folder of its own."""
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def execute(path: Path, folder: Path) -> Any:
    """The example with STATE before and after all that is ours but the loader; all cells with their outputs."""
    notebook = nbformat.read(path, as_version=4)
    imports, *_, loader = (number for number, cell in enumerate(notebook.cells) if cell.cell_type == "code")
    assert "import fineweb_shards" in notebook.cells[imports].source
    assert "ShardLoader" in notebook.cells[loader].source  # which holds a file open as long as it is there
    notebook.cells.insert(loader, nbformat.v4.new_code_cell(STATE))
    notebook.cells.insert(imports + 1, nbformat.v4.new_code_cell(STATE))
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    return client.execute()


def output(cell: Any) -> str:
    return "".join(one.text for one in cell.outputs if one.output_type == "stream" and one.name == "stdout")


def test_the_example_runs_and_leaves_the_kernel_as_it_was(tmp_path: Path) -> None:
    """Every cell, with what it prints; signal handlers, mask, priority, folder, environment, streams, descriptors and
    threads are the same before and after."""
    path = ROOT / "docs" / "examples" / "library.ipynb"
    assert all(not cell.get("outputs") for cell in nbformat.read(path, as_version=4).cells), "committed without outputs"
    cells = [cell for cell in execute(path, tmp_path).cells if cell.cell_type == "code"]
    printed = [output(cell) for cell in cells]
    assert printed[1] == printed[-2]
    assert "would start from the beginning" in printed[2]
    assert printed[3].startswith("2 shards, 2,000,000 tokens")
    assert "kept 2142 of 5000 documents\n" in printed
    assert any("InputError\n3\n" in text for text in printed)
    assert printed[-3].endswith("True\n")
    assert printed[-1].replace("torch.Size([4, 256])", "(4, 256)") == "(4, 256) (4, 256)\n"


@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
def test_the_stop_button_keeps_what_is_finished(tmp_path: Path, kernel: Any) -> None:
    """The cell ends with KeyboardInterrupt, the finished shards stay, and the kernel keeps working."""
    manager, client = kernel
    documents = "'A text of a few words.' for _ in itertools.count()"
    settings = 'out="out", shard_tokens=20_000'
    request = client.execute(f"import itertools, fineweb_shards\nfineweb_shards.build(input=({documents}), {settings})")
    manifest = tmp_path / "out" / "manifest.json"
    assert runs.wait_until(lambda: manifest.exists() and bool(json.loads(manifest.read_text())["shards"]))
    manager.interrupt_kernel()
    while (reply := client.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != request:
        pass
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    begun = load_manifest(tmp_path / "out")
    assert begun is not None
    assert begun.shards
    assert not begun.complete
    answer = client.execute_interactive("2 + 2", timeout=60)
    assert answer["content"]["status"] == "ok"
