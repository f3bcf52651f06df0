"""Start SGLang's server with the patched worker: our arguments are taken out, the rest is SGLang's.

Works on every supported release, also on those without plugins: `launch_server` takes the function that each
scheduler process runs, and ours patches that process first.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from typing import Any

from patched_worker import compat, selfcheck, settings
from patched_worker.install import install, run_scheduler_process
from patched_worker.refusals import refuse_arrangement, resolved
from patched_worker.settings import Refusal


def parse(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split a command line.

    Returns:
        The environment variables for our arguments, and SGLang's arguments.

    Raises:
        SystemExit: a malformed argument (argparse), or `Refusal`.
    """
    parser = argparse.ArgumentParser(prog="python -m patched_worker", allow_abbrev=False, add_help=False)
    parser.add_argument("--speculative-disable-batch-threshold", dest=settings.THRESHOLD, metavar="N|never|auto")
    parser.add_argument("--speculative-resume-batch-threshold", dest=settings.RESUME_AT, metavar="N")
    parser.add_argument("--speculative-min-dwell-steps", dest=settings.MIN_DWELL, metavar="N")
    parser.add_argument("--speculative-policy-file", dest=settings.POLICY_FILE, metavar="FILE")
    parser.add_argument("--speculative-draft-sync-steps", dest=settings.DRAFT_SYNC_STEPS, metavar="N")
    parser.add_argument("--speculative-auto-min", dest=settings.AUTO_MIN, metavar="N")
    parser.add_argument("--speculative-auto-max", dest=settings.AUTO_MAX, metavar="N")
    parser.add_argument("--speculative-auto-dry-run", dest=settings.AUTO_DRY_RUN, action="store_const", const="1")
    parser.add_argument("--speculative-trace-file", dest=settings.TRACE_FILE, metavar="FILE")
    parser.add_argument("--allow-modified-source", dest=settings.ALLOW_MODIFIED_SOURCE, action="store_const", const="1")
    if {"-h", "--help"} & set(arguments):
        parser.print_help(sys.stderr)
        print("\nEvery other argument is SGLang's:", file=sys.stderr)
    ours, rest = parser.parse_known_args(arguments)
    environment = {name: value for name, value in vars(ours).items() if value is not None}
    if environment.get(settings.THRESHOLD, settings.AUTO) != settings.AUTO and settings.POLICY_FILE in environment:
        raise Refusal(
            "give --speculative-disable-batch-threshold or --speculative-policy-file, not both, unless it is auto"
        )
    return environment, rest


def main(arguments: Sequence[str]) -> None:
    """Serve until the server ends.

    Raises:
        Refusal: the arguments, or this SGLang, cannot be served with the patched worker.
    """
    environment, rest = parse(arguments)
    os.environ.update(environment)
    if not settings.requested() and not {"-h", "--help"} & set(rest):
        raise Refusal(
            "give --speculative-disable-batch-threshold N (or `never`, `auto`), or --speculative-policy-file FILE"
        )
    if settings.requested():
        settings.from_environ()
    compat.sglang_version()
    _serve(rest)


def _serve(arguments: list[str]) -> None:
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    chosen = settings.from_environ()
    os.environ[settings.LAUNCHED] = "1"
    _load_plugins()
    install(chosen)
    server_args = prepare_server_args(arguments)
    if hasattr(server_args, "resolve_once"):  # from 0.5.20 what the parser returns is raw input
        server_args.resolve_once()
    _refuse_early(server_args)
    from sglang.srt.entrypoints.http_server import launch_server

    extra: dict[str, Any] = {}
    if chosen.allow_modified_source:
        if resolved(server_args).skip_server_warmup:
            raise Refusal("--allow-modified-source checks the server in its warm-up; drop --skip-server-warmup")
        extra["execute_warmup_func"] = functools.partial(selfcheck.warmup, policy=chosen.policy, order=chosen.order)
    try:
        launch_server(server_args, run_scheduler_process_func=run_scheduler_process, **extra)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def _load_plugins() -> None:
    try:
        from sglang.srt.plugins import load_plugins
    except ImportError:  # 0.5.9 has none
        return
    load_plugins()


def _refuse_early(server_args: Any) -> None:
    """Refuse before any weights are read: choose the worker here as every scheduler process will."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    view = resolved(server_args)
    for flag in ("encoder_only", "use_ray", "grpc_mode", "smg_grpc_mode"):
        if getattr(view, flag, False):
            raise Refusal(f"{flag} starts another kind of server; only the HTTP server is supported")
    refuse_arrangement(view)
    SpeculativeAlgorithm.from_string(view.speculative_algorithm).create_worker(server_args)
