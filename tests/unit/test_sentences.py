"""Messages, docstrings and comments of the product, the tests and the benches are plain English:
readers stumble over none. Everything is spelled as in America.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import hpcpar

ROOT = Path(hpcpar.__file__).parent
TESTS = Path(__file__).parents[1]
#: Folders whose sentences are read.
READ = (ROOT, TESTS, TESTS.parent / "bench")
#: Calls whose first argument a user reads.
SAYING = {"InputError", "RunError", "ValueRefused", "error", "remark", "say"}
#: Each pattern with the words to write instead.
PATTERNS = {
    r"\b(is|are|was|were) of\b(?! (type|shape|size|order|length|use|interest|different|equal)\b)":
        "has, belongs to, comes from",
    r"(?<!\bthere) (?<!that )(is|are) no\b(?! (longer|more|less|matter)\b)": "is not a",
    r"\b(that|those) of\b": "name the thing again",
    r"\btold\b": "given, says",
    r"\bwhat (is|are)\b": "name the thing",
    r"\bas many as\b": "up to, the same number of",
    r"\bso (many|much)\b(?! that)": "this many, a number",
    r"\b(of it|of them) that\b": "name the part",
    r"\bshall\b": "is to, should, must",
    r"(?:^|[.;:] )Of\b": "begin with the subject",
    r"(?:^|[.;:] )What\b(?! (is|are|a|to) [^.]*\?)": "begin with the thing itself",
    r"\b(?:time|number|one|list)s? of it all\b": "name the thing",
}
#: Patterns that pages avoid as well.
ON_PAGES = {
    r"(?:\d|\b(?:ms|us|s|[kMG]?B|GB/s|Gb/s|images|samples|seconds|hours|bytes))\)? an? "
    r"(?:iteration|epoch|forward pass|rank|node|GPU|image|sample|step|layer)\b": "per iteration",
    r"(?i)\b(?:an?|another|each) training\b(?!-)(?! (?:run|set|loop|image|job|sample|step|with|"
    r"data|part|iteration|epoch|time|split|script|program|pass)s?\b)"
    r"|\btrainings\b": "a training run",
}
#: British spellings; what follows the American form of a word is left out.
BRITISH = re.compile(
    r"(?i)(?:optimi|normali|synchroni|minimi|maximi|recogni|seriali|standardi|initiali|summari|"
    r"paralleli|organi|utili|generali|speciali|vectori|memoi|quanti|reali|equali)s(?!ts?\b|ti|m)|"
    r"analys(?:e[ds]?|ing)\b|behaviour|colour|neighbour|favour|honour|centre|\bcentring|\bmetre|"
    r"fibre|catalogue|\bgrey|artefact|licence|defence|practis|learnt|spelt|judgement|whilst|"
    r"programme\b|(?:label|model|travel|signal|channel)l(?:ed|ing)\b")
#: Places that read files and commands with a former spelling.
FORMER = {"hpcpar/api/options.py", "hpcpar/plan/plan.py", "tests/unit/cli/test_parser.py",
          "tests/unit/plan/test_plan_file.py"}
SPELLED = ("hpcpar", "kernels", "tests", "bench", "docs", "jobs", "packaging")
SUFFIXES = {".py", ".md", ".sh", ".toml", ".cu", ".cuh", ".ipynb", ".csv", ".json", ".svg"}


def text(node: ast.expr) -> str:
    """The fixed words of a message."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text(v) if isinstance(v, ast.Constant) else "{}" for v in node.values)
    if isinstance(node, ast.BinOp):
        return text(node.left) + text(node.right)
    return "{}"


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Errors, warnings and remarks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", "") or getattr(node.func, "attr", "")
            if name in SAYING:
                yield node.lineno, text(node.args[0])


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """A paragraph at a time, at the line where it begins."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            doc = node.body[0] if node.body else None
            if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant) \
                    and isinstance(doc.value.value, str):
                line = doc.lineno
                for paragraph in re.split(r"(\n\s*\n)", doc.value.value):
                    yield line, paragraph
                    line += paragraph.count("\n")


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments of one line or several, as one text."""
    begin, last, words = 0, -1, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, said = token.start[0], token.string.lstrip("#: ")
            if line == last + 1 and token.line.strip().startswith("#"):
                words = f"{words} {said}"
            else:
                yield begin, words
                begin, words = line, said
            last = line
    yield begin, words


def sentences() -> list[tuple[str, str]]:
    """All sentences, each with its place."""
    found = []
    for path in (path for folder in READ for path in sorted(folder.rglob("*.py"))):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        found += [(f"{path.relative_to(TESTS.parent)}:{line}", " ".join(words.split()))
                  for line, words in (*messages(tree), *docstrings(tree), *comments(source))]
    return found


def texts() -> Iterator[tuple[str, str]]:
    """Every file that a person may read, and its text."""
    top = TESTS.parent
    paths = [path for folder in SPELLED for path in sorted((top / folder).rglob("*"))]
    for path in [*sorted(top.glob("*.md")), *paths]:
        if path.suffix in SUFFIXES and path != Path(__file__) and "_build" not in path.parts:
            yield str(path.relative_to(top)), path.read_text(encoding="utf-8")


def stumbles(words: str, patterns: Mapping[str, str]) -> list[str]:
    """Better words for the patterns found."""
    return [better for pattern, better in patterns.items() if re.search(pattern, words)]


def test_no_sentence_has_a_pattern_that_readers_stumble_over() -> None:
    said = sentences()
    assert len(said) > 4000
    assert [f"{place}: {words}: write {' and '.join(found)}"
            for place, words in said if (found := stumbles(words, PATTERNS | ON_PAGES))] == []


def test_no_page_has_a_pattern_that_readers_stumble_over() -> None:
    pages = [(place, text) for place, text in texts() if place.endswith(".md")]
    assert len(pages) > 40
    assert [f"{place}:{number}: {line}: write {' and '.join(found)}"
            for place, text in pages for number, line in enumerate(text.splitlines(), 1)
            if (found := stumbles(line, ON_PAGES))] == []


def test_everything_is_spelled_as_in_america() -> None:
    found = [f"{place}: {match[0]}" for place, text in texts() if place not in FORMER
             for match in BRITISH.finditer(f"{place} {text}")]
    assert sorted(set(found)) == []
