"""Every Python that a test starts reads this (conftest.py puts the folder into PYTHONPATH): it can't be nice.

A build leaves the cores to others, and so do its workers. Beside anything that does not, such as the tests of the other
xdist process, it would take minutes for what takes a second, and the load would decide a test. That a build is nice is
proven in tests/system/test_machine.py.
"""

import os

os.nice = lambda increment: 0
