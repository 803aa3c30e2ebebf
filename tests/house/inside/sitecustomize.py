"""Python imports this when a process starts: it installs the recorder."""

import recorder

recorder.install()
