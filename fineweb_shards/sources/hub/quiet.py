"""The hub's clients without a voice of their own: what they would say on the screen, this program says.

Does not import them: they read these variables once, when they are imported, here and in the workers.
"""

from __future__ import annotations

import os
import warnings


def quiet_clients() -> None:
    """No progress bar, no log line and no warning of huggingface_hub, datasets and hf_xet. Who asks for their
    log lines by name (HF_HUB_VERBOSITY, DATASETS_VERBOSITY) gets them."""
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        os.environ[name] = "1"
    for name in ("HF_HUB_VERBOSITY", "DATASETS_VERBOSITY"):
        os.environ.setdefault(name, "critical")
    warnings.filterwarnings("ignore", module=r"(huggingface_hub|datasets)\b")
