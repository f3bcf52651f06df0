"""The notebooks run from top to bottom on the committed results, and are committed with their output."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's libraries
def test_a_notebook_runs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell raises."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(file, as_version=4)
    NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(file.parent)}}).execute()


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_can_be_read_without_running_it(file: Path) -> None:
    """Figures are committed, and no cell of a committed notebook has failed."""
    cells = [cell for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error"]
