"""Run the command line with `python -m holdfast`, even if the `holdfast` script is not on the PATH."""

from holdfast.cli.main import run

run()
