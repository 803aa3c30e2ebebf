"""What all tests share: settings, no fixtures."""

from hypothesis import settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("asyncloader", deadline=None)
settings.load_profile("asyncloader")
