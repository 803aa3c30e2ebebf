"""What to use in place of the pipes of torchdata and torch that are not here.

This file is about ``advice_for``: importing such a class is an ImportError, and calling its
fluent name an AttributeError, that say what to use.
"""

from __future__ import annotations

from typing import NamedTuple


class Elsewhere(NamedTuple):
    """What to use in place of a pipe."""

    #: The pipe's fluent name, or "" if it has none.
    fluent_name: str
    advice: str


_S3 = 'read_from_object_store(store), with obstore\'s S3Store; or open_files_by_fsspec on "s3://"'
_AIS = "map with the SDK of AIStore (aistore), or open_files_by_fsspec"
_FSSPEC = "FSSpecFileLister, FSSpecFileOpener and FSSpecSaver, which read and write any place"
_ONLINE = "read_from_http"
_FRAMES = "load_parquet, whose rows are dicts, and collate; or map a function of pandas or pyarrow"

#: By the name of the class.
ELSEWHERE = {
    "AISFileLister": Elsewhere("list_files_by_ais", _AIS),
    "AISFileLoader": Elsewhere("load_files_by_ais", _AIS),
    "DataFrameMaker": Elsewhere("dataframe", _FRAMES),
    "Extractor": Elsewhere("extract", "Decompressor (decompress)"),
    "GDriveReader": Elsewhere(
        "read_from_gdrive",
        "read_from_http on"
        ' "https://drive.usercontent.google.com/download?id=...&export=download&confirm=t"',
    ),
    "HuggingFaceHubReader": Elsewhere(
        "read_from_huggingface_hub",
        "IterableWrapper(datasets.load_dataset(name, streaming=True)), or SequenceWrapper without"
        " streaming",
    ),
    "IoPathFileLister": Elsewhere("list_files_by_iopath", _FSSPEC),
    "IoPathFileOpener": Elsewhere("open_files_by_iopath", _FSSPEC),
    "IoPathSaver": Elsewhere("save_by_iopath", _FSSPEC),
    "OnlineReader": Elsewhere("read_from_remote", _ONLINE),
    "ParquetDataFrameLoader": Elsewhere("load_parquet_as_df", _FRAMES),
    "RarArchiveLoader": Elsewhere(
        "load_from_rar", "flatmap with the package rarfile; or pack the files as tar or zip"
    ),
    "RoutedDecoder": Elsewhere(
        "routed_decode", "map with a function that decodes by the ending of the file's name"
    ),
    "S3FileLister": Elsewhere("list_files_by_s3", _S3),
    "S3FileLoader": Elsewhere("load_files_by_s3", _S3),
    "Sampler": Elsewhere(
        "", "DataLoader2.from_dataset(dataset, sampler=...); or IterableWrapper(sampler) for keys"
    ),
    "TFRecordLoader": Elsewhere(
        "load_from_tfrecord", "flatmap with the package tfrecord, or webdataset on tar files"
    ),
    "TarArchiveReader": Elsewhere("read_from_tar", "TarArchiveLoader (load_from_tar)"),
    "VideoLoader": Elsewhere("", "map or thread_map with torchcodec or PyAV"),
    "XzFileReader": Elsewhere("read_from_xz", "XzFileLoader (load_from_xz)"),
    "ZipArchiveReader": Elsewhere("read_from_zip", "ZipArchiveLoader (load_from_zip)"),
}

_BY_FLUENT_NAME = {each.fluent_name: each for each in ELSEWHERE.values() if each.fluent_name}


def advice_for(name: str) -> str:
    """Return what to use in place of a class or a fluent name of torchdata's, or "".

    >>> advice_for("extract")
    'use Decompressor (decompress)'
    """
    found = ELSEWHERE.get(name) or _BY_FLUENT_NAME.get(name)
    return f"use {found.advice}" if found else ""


def missing(module: str, name: str) -> Exception:
    """Return the error for a name that a module of pipes does not have.

    For a pipe of torchdata's it is an ImportError: ``from module import name`` would replace an
    AttributeError by an error that does not say what to use.
    """
    advice = advice_for(name)
    if advice:
        return ImportError(f"{module} has no {name}: {advice}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}")
