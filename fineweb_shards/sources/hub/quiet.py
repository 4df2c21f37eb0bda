"""Silence the output of the hub's clients: this program shows progress and waits itself.

Does not import the clients: they read these variables when they are imported, here and in the workers.
"""

from __future__ import annotations

import os
import warnings


def quiet_clients() -> None:
    """Turn off progress bars, log lines and warnings of huggingface_hub, datasets and hf_xet. Log lines that
    the user has asked for (HF_HUB_VERBOSITY, DATASETS_VERBOSITY) stay on."""
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        os.environ[name] = "1"
    for name in ("HF_HUB_VERBOSITY", "DATASETS_VERBOSITY"):
        os.environ.setdefault(name, "critical")
    warnings.filterwarnings("ignore", module=r"(huggingface_hub|datasets)\b")
