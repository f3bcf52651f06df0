"""`specpivot serve` on the command line: it becomes `python -m tuner.service`, which loads a quarter of this."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import UserError
from harness.ourselves import environment, program
from tuner.service.safety import door

TOKEN = "SPECPIVOT_TOKEN"


def serve(
    host: Annotated[str, typer.Option(help="address to listen on; another than this machine's own needs a token")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="port; 0 takes a free one")] = 8700,
    results: Annotated[Path, typer.Option(help="folder of run folders; the service keeps its state there")] = Path(
        "results"
    ),
    token: Annotated[
        str | None, typer.Option(envvar=TOKEN, help="what clients must show; better given by the variable")
    ] = None,
    public_name: Annotated[
        list[str] | None, typer.Option(help="host name under which a proxy offers the service; repeatable")
    ] = None,
) -> None:
    """Run the tuning service and its page."""
    door(host, token)  # a refusal is one line here, before anything else starts
    if results.exists() and not results.is_dir():
        raise UserError(f"{results} is no folder; give another --results")
    words = [f"--host={host}", f"--port={port}", f"--results={results}"]
    words += [f"--public-name={name}" for name in public_name or ()]
    # Servers' keys stay in the environment: the registry names their variables. The token leaves the command line.
    variables = environment()
    if token is not None:
        variables[TOKEN] = token
    os.execve(sys.executable, [*program("tuner.service"), *words], variables)
