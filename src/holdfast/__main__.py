"""`python -m holdfast`: the command line, also where its script is on no path."""

from holdfast.cli.main import run

run()
