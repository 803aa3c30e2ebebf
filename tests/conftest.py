"""What all tests share: settings, no fixtures."""

import signal

from hypothesis import settings
from tqdm import tqdm

# How long an example takes says more about the machine than about the code.
settings.register_profile("asyncloader", deadline=None)
settings.load_profile("asyncloader")

# tqdm's monitor is a thread that outlives every bar, and fork refuses foreign threads.
tqdm.monitor_interval = 0

# A shell's background jobs ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
