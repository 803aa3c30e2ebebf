"""What all tests share: settings, no fixtures."""

from hypothesis import settings
from tqdm import tqdm

# How long an example takes says more about the machine than about the code.
settings.register_profile("asyncloader", deadline=None)
settings.load_profile("asyncloader")

# tqdm's monitor is a thread that outlives every bar, and fork refuses foreign threads.
tqdm.monitor_interval = 0
