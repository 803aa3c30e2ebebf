"""What to use in place of the pipes of torchdata and torch that are not here.

This file is about ``advice_for``: importing such a class is an ImportError, and calling its
fluent name an AttributeError, that say what to use. Where only the name is not here, as that of
``Extractor``, it is another name of the pipe that is.
"""

from __future__ import annotations

#: Earlier names of torchdata's for pipes that are here.
RENAMED = {
    "Extractor": "Decompressor",
    "TarArchiveReader": "TarArchiveLoader",
    "XzFileReader": "XzFileLoader",
    "ZipArchiveReader": "ZipArchiveLoader",
    "extract": "decompress",
    "read_from_tar": "load_from_tar",
    "read_from_xz": "load_from_xz",
    "read_from_zip": "load_from_zip",
}

_S3 = 'read_from_object_store(store), with obstore\'s S3Store; or open_files_by_fsspec on "s3://"'
_AIS = "map with the SDK of AIStore (aistore), or open_files_by_fsspec"
_FSSPEC = "FSSpecFileLister, FSSpecFileOpener and FSSpecSaver, which read and write any place"
_ONLINE = "read_from_http"
_FRAMES = "load_parquet, whose rows are dicts, and collate; or map a function of pandas or pyarrow"

#: By the name of the class: the pipe's fluent name, or "" if it has none, and what to use.
ELSEWHERE = {
    "AISFileLister": ("list_files_by_ais", _AIS),
    "AISFileLoader": ("load_files_by_ais", _AIS),
    "DataFrameMaker": ("dataframe", _FRAMES),
    "GDriveReader": (
        "read_from_gdrive",
        "read_from_http on"
        ' "https://drive.usercontent.google.com/download?id=...&export=download&confirm=t"',
    ),
    "HuggingFaceHubReader": (
        "read_from_huggingface_hub",
        "IterableWrapper(datasets.load_dataset(name, streaming=True)), or SequenceWrapper without"
        " streaming",
    ),
    "IoPathFileLister": ("list_files_by_iopath", _FSSPEC),
    "IoPathFileOpener": ("open_files_by_iopath", _FSSPEC),
    "IoPathSaver": ("save_by_iopath", _FSSPEC),
    "OnlineReader": ("read_from_remote", _ONLINE),
    "ParquetDataFrameLoader": ("load_parquet_as_df", _FRAMES),
    "RarArchiveLoader": (
        "load_from_rar",
        "flatmap with the package rarfile; or pack the files as tar or zip",
    ),
    "RoutedDecoder": (
        "routed_decode",
        "map with a function that decodes by the ending of the file's name",
    ),
    "S3FileLister": ("list_files_by_s3", _S3),
    "S3FileLoader": ("load_files_by_s3", _S3),
    "Sampler": (
        "",
        "DataLoader2.from_dataset(dataset, sampler=...); or IterableWrapper(sampler) for keys",
    ),
    "TFRecordLoader": (
        "load_from_tfrecord",
        "flatmap with the package tfrecord, or webdataset on tar files",
    ),
    "VideoLoader": ("", "map or thread_map with torchcodec or PyAV"),
}

_ADVICE = {name: advice for name, (_, advice) in ELSEWHERE.items()}
_ADVICE |= {fluent_name: advice for fluent_name, advice in ELSEWHERE.values() if fluent_name}


def advice_for(name: str) -> str:
    """Return what to use in place of a class or a fluent name of torchdata's, or "".

    >>> advice_for("read_from_remote")
    'use read_from_http'
    """
    return f"use {_ADVICE[name]}" if name in _ADVICE else ""


def missing(module: str, name: str) -> Exception:
    """Return the error for a name that a module of pipes does not have.

    For a pipe of torchdata's it is an ImportError: ``from module import name`` would replace an
    AttributeError by an error that does not say what to use.
    """
    advice = advice_for(name)
    if advice:
        return ImportError(f"{module} has no {name}: {advice}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}")
