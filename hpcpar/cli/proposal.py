"""``hpcpar proposal``: a page for the committee that allocates compute time."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.api.options import ModuleOptions
from hpcpar.api.proposal import ProposalArguments, make_proposal, picture_beside
from hpcpar.cli.options import ResultOptions
from hpcpar.options.fields import OUT, required
from hpcpar.options.output_files import PAGE
from hpcpar.report.tables import show_line


@dataclass(frozen=True, kw_only=True)
class ProposalCommand(ResultOptions, ModuleOptions, ProposalArguments, section="output"):
    example = ("hpcpar proposal --network resnet50 --machine juwels-booster --ranks 4,16,64 "
               "--batch 1024 --epochs 90 -o proposal.html")
    out: str = required(PAGE, "write the page: Markdown, LaTeX or HTML",
                           "FILE.md|FILE.tex|FILE.html", **OUT)


def main(args: ProposalCommand) -> int:
    picture_beside(args.out)
    result = make_proposal(args)
    result.save(args.out)
    args.show(result.to_json, result.rows, lambda: show_line(result.answer))
    return 0
