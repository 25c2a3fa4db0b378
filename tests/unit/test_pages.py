"""README and gallery show what ``python -m docs.drawings.pages`` writes."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("matplotlib", reason="pictures come with the extra 'plot'")

from docs.drawings import pages
from docs.drawings.style import FOLDER

OUTPUT = """
$ hpcpar plan --network old --machine runs/machine.toml --samples 1438
Use 2 cores of machine, data parallel: 1 ms
$ hpcpar plan --network lenet5 --machine runs/machine.toml --samples 1438 -o plan.json
note: this note is not shown
Use 2 cores of machine, data parallel: 21.39 ms per iteration of 128
(calibrated), an epoch of 1,438 images in 240.2 ms, 0.001 core-hours
strategy  ranks  iteration
data   *      2   21.39 ms
owt           2   22.46 ms
pipeline      2   23.53 ms
filter        2   30.01 ms

$ mpiexec -n 2 hpcpar run --plan plan.json --epochs 16 --json
epoch 15/16  step 165/176  loss 0.02  18.52 ms per iteration (predicted 21.39)
epoch 16/16  step 176/176  loss 0.01  18.56 ms per iteration (predicted 21.39)

$ hpcpar compare run.h5 --plot compare.png
Predicted 21.39 ms per iteration, measured 23.16 ms: 92.3% accurate, inside the
90% interval
"""
EXCERPT = """```text
$ hpcpar plan --network lenet5 --machine runs/machine.toml ...
Use 2 cores of machine, data parallel: 21.39 ms per iteration of 128 (calibrated), an epoch of \
1,438 images in 240.2 ms, ...
strategy  ranks  iteration
data   *      2   21.39 ms
owt           2   22.46 ms
pipeline      2   23.53 ms
...
$ mpiexec -n 2 hpcpar run --plan plan.json --epochs 16 ...
epoch 16/16  step 176/176  loss 0.01  18.56 ms per iteration (predicted 21.39)
$ hpcpar compare run.h5 --plot compare.png
Predicted 21.39 ms per iteration, measured 23.16 ms: 92.3% accurate, inside the 90% interval
```"""


def test_the_numbers_of_readme_and_gallery_are_those_of_the_results() -> None:
    readme = pages.README.read_text(encoding="utf-8")
    assert pages.put(readme, "accuracy", pages.accuracy()) == readme
    assert pages.unseen() in readme
    assert f"{pages.published_runs()} published runs" in pages.GALLERY.read_text(encoding="utf-8")


def test_predictions_in_the_readme_are_today_s() -> None:
    readme = pages.README.read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \| [\d.]+ ms \|", readme, re.MULTILINE) == [
        str(batch) for batch in pages.BATCHES]
    assert f"\n{pages.vgg16(pages.BATCHES[:1])}\n" in readme


def test_the_script_draws_every_picture() -> None:
    found = pages.pictures()
    assert set(found) == {path.stem for path in FOLDER.glob("*.png")}
    for name, commands in found.items():
        assert name in pages.FILES or f"runs/{name}.png" in commands, name


def test_the_quickstart_s_output_is_shortened() -> None:
    assert pages.quickstart(OUTPUT) == EXCERPT


def test_a_page_without_the_marks_of_a_block_is_refused() -> None:
    marked = "<!-- a -->\nold\n<!-- end of a -->\n"
    assert pages.put(marked, "a", "new\nlines") == "<!-- a -->\nnew\nlines\n<!-- end of a -->\n"
    with pytest.raises(KeyError):
        pages.put("<!-- a -->\nold\n", "a", "new")
