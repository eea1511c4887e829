"""Runs one check of `tests.fuzz.checks` under atheris (libFuzzer), from the corpus that is kept."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

CORPUS = Path(__file__).resolve().parent / "corpus"


def fuzz(name: str) -> None:
    """Run the check `name` on inputs from libFuzzer; the command line has its options, such as -runs=200000.

    A found input is printed and written to the current folder as crash-…: copy it into corpus/NAME and fix the fault;
    `make test` then replays it. New inputs that only increase coverage are dropped at the end.
    """
    # Imported here: atheris has wheels for Linux and CPython up to 3.13 only, and the replay does not need it.
    atheris = import_module("atheris")
    with atheris.instrument_imports(include=["reasond_server"]):
        checks = import_module("tests.fuzz.checks")
    with TemporaryDirectory() as found:
        atheris.Setup([*sys.argv, found, str(CORPUS / name)], checks.CHECKS[name])
        atheris.Fuzz()
