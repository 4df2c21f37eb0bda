"""The tests themselves: what they inherit from the shell that starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# What a program that a test starts finds.
LOOK = """
import json, locale, os, resource, signal, sys
names = ("SIGINT", "SIGHUP", "SIGTERM")
mask = os.umask(0)
print(json.dumps({
    "ignored": [name for name in names if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN],
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "umask": mask,
    "encoding": locale.getencoding(),
    "limited": [resource.getrlimit(one)[0] for one in (resource.RLIMIT_FSIZE, resource.RLIMIT_AS)],
    "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 99,
    "variables": [name for name in ("HF_ENDPOINT", "NO_COLOR", "https_proxy") if name in os.environ],
    "terminal": os.environ["TERM"],
}))
"""
HOSTILE = """
trap "" HUP INT TERM
umask 077
ulimit -S -f 100000; ulimit -S -v 3000000; ulimit -S -n 99
export LC_ALL=POSIX PYTHONUTF8=0 TERM=dumb NO_COLOR=1 HF_ENDPOINT=http://127.0.0.1:1 https_proxy=http://127.0.0.1:1
exec "$@"
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="shells have other limits elsewhere")
def test_tests_inherit_nothing_from_the_shell() -> None:
    """Whatever the shell ignores, limits or sets, the programs that tests start find the same."""
    start = f"subprocess.run([sys.executable, '-c', {LOOK!r}], check=True)"
    program = f"import sys, subprocess, tests.conftest; {start}"
    found = []
    for words in ([], ["/bin/sh", "-c", HOSTILE, "sh"]):
        done = subprocess.run(
            [*words, sys.executable, "-c", program], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        )  # fmt: skip
        found.append(json.loads(done.stdout))
    plain, hostile = found
    assert hostile == plain
    assert (plain["ignored"], plain["umask"], plain["terminal"]) == ([], 0o022, "xterm")
