"""The command line of SpecPivot; it only mounts what the packages offer."""

from __future__ import annotations

import typer

import harness.cli
import patched_worker.compat
import patched_worker.validated
import tuner.cli

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
harness.cli.register(
    app,
    {name: tuple(module.VERSIONS) for name, module in patched_worker.compat.WORKERS.items()},
    patched_worker.validated.by_release(),
)
tuner.cli.register(app)


@app.callback()
def _root() -> None:
    """Find the load at which EAGLE-3 speculation turns from gain to loss, and make SGLang switch it off there."""


def main() -> None:
    """Entry point of the console script."""
    harness.cli.run(app)


if __name__ == "__main__":
    main()
