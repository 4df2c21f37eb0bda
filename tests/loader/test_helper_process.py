"""The helper process: an answer is always that to the question that was asked."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fineweb_shards.loader.forkable_store import HelperProcess

VALUES = {f"key {number}": number for number in range(20)}


@pytest.fixture
def helper() -> Iterator[HelperProcess]:
    """A helper with a dictionary, whose `get` can be asked."""
    helper = HelperProcess(VALUES)
    yield helper
    if helper._idle is not None:
        with helper._idle:
            pass


def raise_once(action: Callable[..., Any], error: BaseException, *, after: bool) -> Callable[..., Any]:
    """The action; its first call raises the error, before it does anything or after."""
    errors = [error]

    def call(*arguments: Any) -> Any:
        if errors and not after:
            raise errors.pop()
        result = action(*arguments)
        if errors:
            raise errors.pop()
        return result

    return call


@pytest.mark.full(but=["load-True"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", ["dump", "load"])
def test_a_call_that_is_interrupted_leaves_no_answer(
    helper: HelperProcess, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    """Wherever Ctrl-C comes, the next call gets the answer to its own question, from a new process."""
    assert helper.call("get", "key 1") == 1
    first = helper._idle
    with monkeypatch.context() as patch:
        patch.setattr(pickle, step, raise_once(getattr(pickle, step), KeyboardInterrupt(), after=after))
        with pytest.raises(KeyboardInterrupt):
            helper.call("get", "key 2")
    assert helper.call("get", "key 3") == 3
    assert first is not None
    assert first.returncode == -signal.SIGKILL


def test_threads_get_their_own_answers(helper: HelperProcess) -> None:
    """However many ask at once."""
    found: dict[str, object] = {}
    threads = [
        threading.Thread(target=lambda key=key: found.update({key: helper.call("get", key)}))
        for key in VALUES
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == VALUES


def test_ctrl_c_is_for_who_has_asked(helper: HelperProcess, capfd: pytest.CaptureFixture[str]) -> None:
    """The terminal sends it to the helper, too, which goes on and prints nothing."""
    assert helper.call("get", "key 1") == 1
    process = helper._idle
    assert process is not None
    os.kill(process.pid, signal.SIGINT)
    assert helper.call("get", "key 2") == 2
    assert helper._idle is process
    assert capfd.readouterr().err == ""


def test_a_helper_that_has_died_is_said_once(helper: HelperProcess) -> None:
    """Killed from outside, for example, for want of memory; the next call has a new one."""
    assert helper.call("get", "key 1") == 1
    assert helper._idle is not None
    helper._idle.kill()
    helper._idle.wait()
    with pytest.raises(RuntimeError, match="a helper process has ended with -9"):
        helper.call("get", "key 2")
    assert helper.call("get", "key 3") == 3
