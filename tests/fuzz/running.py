"""Runs one check of `tests.fuzz.checks` under atheris (libFuzzer), from the corpus that is kept."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

CORPUS = Path(__file__).resolve().parent / "corpus"


def fuzz(name: str) -> None:
    """Run the check `name` on what libFuzzer makes; its options are the command's, such as -runs=200000.

    What it finds is printed and written where it runs, as crash-…: put that into corpus/NAME, mend the fault, and
    `make test` replays it for ever. New inputs that only reach further are dropped at the end.
    """
    # Imported here: wheels exist for Linux and CPython up to 3.13 only, and the replay needs no atheris.
    atheris = import_module("atheris")
    with atheris.instrument_imports(include=["reasond_server"]):
        checks = import_module("tests.fuzz.checks")
    with TemporaryDirectory() as found:
        atheris.Setup([*sys.argv, found, str(CORPUS / name)], checks.CHECKS[name])
        atheris.Fuzz()
