"""The counts of the house: of a small package, and of this checkout."""

from __future__ import annotations

import graphlib
from pathlib import Path

import pytest

from tests.house.__main__ import figures, table
from tests.house.reading import declared_by_hand, floors, read, words_for_where
from tests.house.running import Ways, run

_ROOT = Path(__file__).parents[2]

_SHELF = '''"""A shelf.

Of two lines more.
"""

from room.box import Box


class Shelf:
    """Holds boxes."""

    def _put(self) -> Box:
        # A reason.
        return Box()


class Label:
    """On a shelf."""

    put = Shelf._put
'''

_BOX = '''"""A box."""

import room.shelf


class Box:
    def _shut(self):
        """Nothing."""

    def close(self):
        self._shut()
        self._shut()


class Label:
    """On a box."""
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    package = tmp_path / "room"
    package.mkdir()
    for name, text in {"__init__": "", "shelf": _SHELF, "box": _BOX}.items():
        (package / f"{name}.py").write_text(text)
    return package


@pytest.fixture(scope="module")
def ways() -> Ways:
    return run(_ROOT)


def test_empty_files_are_not_counted(package: Path) -> None:
    assert read(package).files == 2


def test_lines_of_code_are_neither_empty_nor_comments_nor_docstrings(package: Path) -> None:
    facts = read(package)
    assert facts.lines == _SHELF.count("\n") + _BOX.count("\n")
    assert facts.code == 6 + 7
    assert facts.import_lines == 2


def test_a_class_name_that_occurs_twice_is_ambiguous(package: Path) -> None:
    facts = read(package)
    assert facts.classes.total() == 4
    assert facts.ambiguous == ["Label"]


def test_a_module_that_one_other_imports_is_lonely(package: Path) -> None:
    assert read(package).lonely == ["room.box", "room.shelf"]
    (package / "both.py").write_text("from room import box, shelf\n")
    assert read(package).lonely == []


def test_private_functions_used_once_are_named(package: Path) -> None:
    assert read(package).used_once == ["_put"]


def test_a_room_is_a_floor_above_those_that_it_imports(tmp_path: Path) -> None:
    house = tmp_path / "package" / "house"
    (house / "cellar").mkdir(parents=True)
    (house / "cellar/shelf.py").write_text("from package.house.cellar import box\n")
    (house / "cellar/box.py").write_text("import package.other\n")
    (house / "hall.py").write_text("from package.house.cellar.shelf import Shelf\n")
    (house / "roof.py").write_text("def up():\n    from package.house import hall\n")
    assert floors(house) == 3
    (house / "cellar/box.py").write_text("import package.house.roof\n")
    with pytest.raises(graphlib.CycleError):
        floors(house)


def test_what_a_class_says_of_its_place_by_hand_is_counted(tmp_path: Path) -> None:
    (tmp_path / "pipe.py").write_text(
        "class Pipe:\n    cursor_fields = ()\n    needs: int = 0\n    def cursor(self): ...\n"
        "    def run(self): ...\n"
    )
    assert declared_by_hand(tmp_path) == 3


def test_the_words_for_where_are_the_rows_of_their_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '## Words for "where"\n\n| word | is |\n|---|---|\n| mark | a |\n\n## More\n| b |'
    )
    assert words_for_where(page) == 1
    page.write_text("# None\n")
    assert words_for_where(page) == 0


@pytest.mark.soak
def test_loading_a_state_walks_through_functions_and_files(ways: Ways) -> None:
    assert ("loader/dataloader2.py", "DataLoader2.load_state_dict") in ways.resume.functions
    assert len(ways.resume.functions) > len(ways.resume.files) > 1


@pytest.mark.soak
@pytest.mark.parametrize("side", ["worker", "loader", "async_loader"])
def test_the_way_of_an_item_has_functions_and_files_and_jumps(ways: Ways, side: str) -> None:
    way = getattr(ways, side)
    assert len(way.functions) >= len(way.files) > 1
    assert way.jumps > 1


@pytest.mark.soak
def test_a_worker_pulls_an_item_out_of_the_graph_and_sends_it(ways: Ways) -> None:
    folders = {file.partition("/")[0] for file in ways.worker.files}
    assert {"datapipes", "transport", "workers"} <= folders
    assert "loader" not in folders


@pytest.mark.soak
def test_a_loader_takes_an_item_from_a_channel_and_gives_it_to_the_loop(ways: Ways) -> None:
    for way in (ways.loader, ways.async_loader):
        assert {"transport", "loader"} <= {file.partition("/")[0] for file in way.files}


@pytest.mark.soak
def test_an_epoch_of_tiny_items_takes_calls_on_both_sides(ways: Ways) -> None:
    # A worker makes every second of the items.
    assert ways.epoch_in_worker > 50
    assert ways.epoch_in_loader > 100


def test_two_columns_have_a_ratio() -> None:
    lines = table([{"files": 300, "twice": 0}, {"files": 120, "twice": 1}]).splitlines()
    assert lines[0].split() == ["before", "after", "ratio"]
    assert lines[1].split() == ["files", "300", "120", "0.40"]
    assert lines[2].split() == ["twice", "0", "1", "-"]


@pytest.mark.soak
def test_the_figures_of_a_checkout_are_positive(
    monkeypatch: pytest.MonkeyPatch, ways: Ways
) -> None:
    monkeypatch.setattr("tests.house.__main__.run", lambda root: ways)
    found = figures(_ROOT)
    assert all(value >= 0 for value in found.values())
    assert found["files"] > 50
