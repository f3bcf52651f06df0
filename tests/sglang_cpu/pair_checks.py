"""What must hold for `pairs`, checked where PyTorch is: run by test_pairs.py inside the environment of a release.

One process runs all checks it is asked for, as importing PyTorch takes longer than most of them, and writes what became
of each to FOLDER/outcome.json: null, or the traceback.

    python -m tests.sglang_cpu.pair_checks FOLDER CHECK...
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from pairs.files import write_json
from tests.sglang_cpu.pair_model_checks import (
    a_damaged_model_is_refused,
    an_unknown_model_is_refused,
    captured_layers_are_sglangs,
    dequantised_values_are_the_files,
    llama_is_transformers_llama,
    rotation_survives_the_new_row_order,
)
from tests.sglang_cpu.pair_padding_checks import (
    impossible_sizes_are_refused,
    padding_computes_the_same,
    the_named_size_holds_smollm2,
)
from tests.sglang_cpu.pair_training_checks import (
    acceptance_is_that_of_a_server,
    another_target_is_refused,
    make_pair,
    other_settings_are_refused,
    training_goes_on_and_exports,
)


def fails(folder: Path) -> None:
    """So that the way from here to the tests is seen to work."""
    raise AssertionError("this check always fails")


CHECKS: tuple[Callable[[Path], None], ...] = (
    llama_is_transformers_llama,
    captured_layers_are_sglangs,
    dequantised_values_are_the_files,
    rotation_survives_the_new_row_order,
    an_unknown_model_is_refused,
    a_damaged_model_is_refused,
    acceptance_is_that_of_a_server,
    training_goes_on_and_exports,
    other_settings_are_refused,
    another_target_is_refused,
    make_pair,
    padding_computes_the_same,
    impossible_sizes_are_refused,
    the_named_size_holds_smollm2,
    fails,
)


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    checks = {check.__name__: check for check in CHECKS}
    outcome: dict[str, str | None] = {}
    for name in names:
        (folder / name).mkdir()
        try:
            checks[name](folder / name)
        except Exception:
            outcome[name] = traceback.format_exc()
        else:
            outcome[name] = None
    write_json(folder / "outcome.json", outcome)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
