"""Draws the pictures of README, gallery and how-to pages again, and writes the numbers beside them.

Run: ``python -m docs.drawings.pages [PICTURE ...]`` (half an hour on two quiet cores for all).
Without names it draws every picture and writes every number.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import hpcpar
from docs.drawings.__main__ import draw
from docs.drawings.style import FOLDER
from hpcpar.report.tables import amount
from tests.run_docs import script

DOCS = FOLDER.parent
ROOT = DOCS.parent
README, GALLERY = ROOT / "README.md", DOCS / "gallery.md"
RESULTS, UNSEEN = DOCS / "results/gallery.md", DOCS / "results/accuracy.md"
#: Pages with pictures that commands draw.
PAGES = (GALLERY, DOCS / "how-to/apply-for-compute-time.md", DOCS / "how-to/which-grid.md")
IMAGE = re.compile(r"!\[[^\]]*\]\((?:\.\./)?pictures/([\w-]+)\.png\)")
#: Picture -> commands, where they are not the ones above it in its section of the page.
COMMANDS = {"compare": "bash jobs/quickstart.sh", "gallery": "python -m bench.gallery",
            "efficiency": "python -m bench.gallery"}
#: Picture -> the file that its commands write, where it is not ``runs/PICTURE.png``.
FILES = {"compare": "runs/quickstart/compare.png", "sweep": "runs/gallery-sweep/time.png",
         "gallery": "docs/pictures/gallery.png", "efficiency": "docs/pictures/efficiency.png",
         "proposal": "runs/apply-scaling.png"}
#: Mini-batches of README's table.
BATCHES = (64, 128, 256, 512)


def pictures() -> dict[str, str]:
    """Every picture that commands draw, with its commands."""
    out = {}
    for page in PAGES:
        for section in re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
            for name in IMAGE.findall(section):
                out[name] = COMMANDS.get(name) or script(section, "")
    return out


def draw_again(name: str) -> str:
    """Runs the commands of a picture and takes the file that they write; returns their output."""
    done = subprocess.run(["bash", "-c", pictures()[name]], cwd=ROOT, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=os.environ | {"COLUMNS": "80"})
    if done.returncode:
        sys.exit(f"{done.stdout}\n{name}: the commands failed with status {done.returncode}")
    file = ROOT / FILES.get(name, f"runs/{name}.png")
    if file != (picture := FOLDER / f"{name}.png"):
        shutil.copyfile(file, picture)
    return done.stdout


def quickstart(output: str) -> str:
    """README's excerpt of the quickstart's output, from its last turn."""
    text = output[output.rindex("$ hpcpar plan"):]
    lines = text.splitlines()

    def command(start: str, end: str) -> str:
        line = next(line for line in lines if line.startswith(start))
        return line[:re.search(end, line).end()]  # type: ignore[union-attr]

    def sentence(start: str, end: str) -> str:
        """A sentence that fills several lines of the terminal, on one line."""
        found = re.search(rf"^{start}\b(.|\n)*?{end}", text, re.MULTILINE)
        return " ".join(found[0].split())  # type: ignore[index]

    table = next(i for i, line in enumerate(lines) if line.startswith("strategy "))
    epochs = [line for line in lines if line.startswith("epoch ") and "predicted" in line]
    return "\n".join([
        "```text", command("$ hpcpar plan", r"machine\.toml") + " ...",
        sentence("Use", r"epoch of [\d,]+ images in [\d.]+ \w+,") + " ...",
        *(line.rstrip() for line in lines[table:table + 4]), "...",
        command("$ mpiexec -n 2 hpcpar run", r"--epochs \d+") + " ...", epochs[-1],
        command("$ hpcpar compare", "$"), sentence("Predicted", "interval"), "```"])


def vgg16(batches: Sequence[int] = BATCHES) -> str:
    """README's table of predictions for VGG-16."""
    rows = ["| batch | data parallel | layer by layer | speedup | memory per rank |",
            "| --- | --- | --- | --- | --- |"]
    for batch in batches:
        data, split = hpcpar.predict("vgg16", 16, batch, "abci-v100", "data,layerwise").predictions
        rows.append(
            f"| {batch} | {1e3 * data.iteration_s:.1f} ms | {1e3 * split.iteration_s:.1f} ms | "
            f"{data.iteration_s / split.iteration_s:.1f} | {amount(data.memory_bytes)}, "
            f"{amount(split.memory_bytes)} |")
    return "\n".join(rows)


def cells(page: Path, first: str, after: str = "") -> list[str]:
    """The cells of the row of a page that begins with `first`, below the line `after`."""
    lines = page.read_text(encoding="utf-8").splitlines()
    lines = lines[lines.index(after) if after else 0:]
    line = next(line for line in lines if line.startswith(f"| {first} |"))
    return [cell.strip(" *") for cell in line.strip("|").split("|")]


def published_runs() -> int:
    """Published runs that the gallery's picture shows."""
    sections = ("## One device", "## Several devices")
    return sum(int(cells(RESULTS, "all", section)[1]) for section in sections)


def accuracy() -> str:
    """README's table of the accuracy on other people's machines."""
    rows = [("one GPU, float32 ¹", "each device"),
            ("one GPU, mixed precision ¹", "each device, in mixed precision"),
            ("one GPU, TF32 ¹", "each device, in TF32")]
    found = [(words, *cells(RESULTS, first)[1:3]) for words, first in rows]
    found += [("2 to 80 GPUs ²", *cells(RESULTS, "all", "## Several devices")[1:3]),
              ("doubtful figures, or limited by input",
               *cells(RESULTS, "all", "Predicted, but not counted:")[1:3])]
    error = float(cells(RESULTS, "all", "## Speedups")[2].strip("%"))
    return "\n".join([
        "| published runs of others | runs | mean accuracy |", "| --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in found), "",
        "¹ Each device is left out of the fit that predicts it.  ",
        f"² The mean error of speedups is {error:.0f}%."])


def unseen() -> str:
    """README's claim about calibrated machines."""
    _, cases, mean, worst, *_ = cells(UNSEEN, "a core for each rank")
    return f"{mean} mean accuracy and {worst} at worst in {cases} cases"


def put(text: str, block: str, content: str) -> str:
    """A page with new content between the marks of a block."""
    marks = re.compile(rf"(<!-- {block} -->\n).*?(\n<!-- end of {block} -->)", re.DOTALL)
    if not marks.search(text):
        raise KeyError(block)
    return marks.sub(lambda mark: f"{mark[1]}{content}{mark[2]}", text)


def main(names: Sequence[str]) -> None:
    """Draws the named pictures and writes the numbers beside them; without names, all."""
    if not names:
        draw()
    for name in names or pictures():
        print(f"{name} ...", flush=True)
        output = draw_again(name)
        if name == "compare":
            README.write_text(put(README.read_text(encoding="utf-8"), "quickstart",
                                  quickstart(output)), encoding="utf-8")
    readme, gallery = README.read_text(encoding="utf-8"), GALLERY.read_text(encoding="utf-8")
    if not names:
        readme = put(readme, "vgg16", vgg16())
    readme = re.sub(r"[\d.]+% mean accuracy and [\d.]+% at worst in \d+ cases", unseen(),
                    put(readme, "accuracy", accuracy()))
    README.write_text(readme, encoding="utf-8")
    GALLERY.write_text(re.sub(r"\d+ published runs", f"{published_runs()} published runs", gallery),
                       encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
