"""``python -m asyncloader migrate``: programs of torchdata, rewritten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from asyncloader.tools.command import main

TORCHDATAS = '''\
"""A program of torchdata's tutorial."""
import torchdata.datapipes as dp
import torchdata.datapipes.iter
from torchdata.datapipes.iter import (
    FileLister,  # lists
    IterableWrapper as Wrapper,
)
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import Shuffle
from torchdata.dataloader2 import graph, communication
from torch.utils.data import DataLoader, functional_datapipe
from torch.utils.data.graph import traverse_dps
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torchdata.dataloader2.graph.settings import set_graph_random_seed

pipe = dp.iter.IterableWrapper(range(6)).shuffle().sharding_filter()  # ä, ö: no ASCII
pipe = torchdata.datapipes.iter.Mapper(pipe, str)
'''

OURS = '''\
"""A program of torchdata's tutorial."""
import asyncloader.datapipes as dp
import asyncloader.datapipes.iter
from asyncloader.datapipes.iter import (
    FileLister,  # lists
    IterableWrapper as Wrapper,
)
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.adapters import Shuffle
import asyncloader.graph as graph
import asyncloader.communication as communication
from asyncloader import functional_datapipe
from torch.utils.data import DataLoader
from asyncloader.graph import traverse_dps
from asyncloader.datapipes.iter import SHARDING_PRIORITIES
from asyncloader.graph import set_graph_random_seed

pipe = dp.iter.IterableWrapper(range(6)).shuffle().sharding_filter()  # ä, ö: no ASCII
pipe = asyncloader.datapipes.iter.Mapper(pipe, str)
'''


def test_imports_and_dotted_names_are_rewritten_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(TORCHDATAS, encoding="utf-8")
    assert main(["migrate", str(file)]) == 0
    assert file.read_text(encoding="utf-8") == OURS


@pytest.mark.soak
def test_the_rewritten_program_runs(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    program = (
        TORCHDATAS.replace(", communication", "") + "print(sorted(pipe), graph.traverse_dps)\n"
    )
    file.write_text(program, encoding="utf-8")
    assert main(["migrate", str(file)]) == 0
    done = subprocess.run(
        [sys.executable, str(file)], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("['0', '1', '2', '3', '4', '5'] ")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("from torchdata.datapipes.iter import Mapper, OnlineReader", "use read_from_http"),
        ("from torchdata.datapipes.iter import NoSuchPipe", "has no attribute 'NoSuchPipe'"),
        ("from torchdata.dataloader2 import communication", "no asyncloader.communication"),
        ("from torchdata.datapipes.utils import to_graph", "asyncloader.graph draws graphs"),
        (
            "torch.utils.data.graph_settings.apply_sharding(pipe, 2, 0)",
            "graph_settings.apply_sharding knows torch's pipes only: use that of asyncloader.graph",
        ),
        ("import torchdata.nodes", "torchdata.nodes has no place here: compose pipes"),
        ("from torchdata.nodes import Loader", "torchdata.nodes has no place here: compose pipes"),
        ("from torchdata.stateful_dataloader import StatefulDataLoader", "from_dataset"),
        ("import torchdata", "torchdata has no place here"),
    ],
)
def test_what_it_cannot_rewrite_is_printed_with_its_line(
    line: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"\n{line}\n")
    assert main(["migrate", str(file)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{file}: ")
    assert second.startswith(f"{file}:2: ")
    assert says in second


def test_a_program_without_torchdata_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "program.py"
    program = b"import os, torch\r\nfrom torch.utils.data import Dataset\r\nfrom . import data\r\n"
    file.write_bytes(program)
    assert main(["migrate", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: 0 changes\n"
    assert file.read_bytes() == program


def test_what_is_no_python_is_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "program.py"
    file.write_text("from torchdata import (")
    assert main(["migrate", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"asyncloader migrate: {file} cannot be read as Python: ")
