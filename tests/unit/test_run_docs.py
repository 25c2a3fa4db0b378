"""Commands and files on the pages, as the script that runs the documentation finds them."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from hpcpar.io.schema import parse_toml
from tests.run_docs import BLOCK, ROOT, script

PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md"))
         if any(file for _, file, _ in BLOCK.findall(path.read_text(encoding="utf-8")))]
PAGE = """
* In a list:

  ```python
  # two words.py
  not a file
  ```

  ```python
  # say.py
  print('it''s')

  if True:
      print(1)
  ```

  ```sh
  python3 say.py >said
  ```

```text
false
```
"""


def test_python_on_a_page_becomes_a_file_that_commands_run(tmp_path: Path) -> None:
    subprocess.run(["bash", "-c", script(PAGE, "")], cwd=tmp_path, check=True)
    assert (tmp_path / "say.py").read_text() == "print('it''s')\n\nif True:\n    print(1)\n"
    assert (tmp_path / "said").read_text() == "its\n1\n"
    assert {path.name for path in tmp_path.iterdir()} == {"say.py", "said"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_on_pages_are_valid_and_used(page: Path) -> None:
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    commands = "".join(block for _, file, block in blocks if not file)
    for _, file, block in blocks:
        if file:
            if file.endswith(".toml"):
                parse_toml(block.encode(), file, "")
            else:
                ast.parse(block)
            assert Path(file).stem in commands


def test_no_page_hides_python_in_a_command() -> None:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        assert "<<" not in script(page.read_text(encoding="utf-8"), ""), page
