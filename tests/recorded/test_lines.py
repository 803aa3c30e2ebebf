"""Work that cannot be repeated is done once along a line of states, in random graphs."""

from __future__ import annotations

import pytest

from asyncloader.datapipes.running import cursor_history
from tests.recorded.lines import Line


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(240))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_each_number_is_settled_once_along_a_line_of_states(seed, monkeypatch):
    if seed % 2:
        # Places are noted after every item, and forgotten as soon as they may be.
        monkeypatch.setattr(cursor_history, "_SHARE", 0)
    line = Line(seed)
    line.play()
    assert not list(line.wrong()), line.graph_in_words()
