"""``python -m benchmarks``: all ratios in one run; ``--only NAME`` one of them, ``--page`` their page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.page import PAGE, write_page
from benchmarks.runner import BENCHMARKS, RESULTS, run, run_again
from pivotopd.threads import set_threads


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; return 1 with ``--strict`` where a gate was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Ratios of one run, on this CPU."
    )
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS), help="run this one; repeatable")
    parser.add_argument("--again", action="store_true", help="with --only: into the file that is there")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: do they work, not how fast")
    parser.add_argument("--out", type=Path, help=f"result file; {RESULTS} for a full run, none otherwise")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a gate is missed")
    parser.add_argument("--page", action="store_true", help=f"only write {PAGE} from the result file")
    options = parser.parse_args(arguments)
    console = Console(width=None if Console().is_terminal else 170)
    if options.page:
        write_page(options.out or RESULTS, PAGE)
        console.print(f"written: {PAGE}")
        return 0
    if options.again:
        if options.only is None or options.quick:
            parser.error("--again goes with --only, and not with --quick")
        if not (options.out or RESULTS).exists():
            parser.error(f"{options.out or RESULTS} is not there yet: measure all first, without --only")
        set_threads(1)
        again = run_again(options.only, out=options.out or RESULTS, console=console)
        write_page(options.out or RESULTS, PAGE)
        return int(options.strict and bool(again.missed))
    whole = options.only is None and not options.quick
    out = options.out or (RESULTS if whole else None)
    set_threads(1)
    report = run(options.only or list(BENCHMARKS), quick=options.quick, out=out, console=console)
    if out is not None:
        console.print(f"written: {out}")
    if whole and out == RESULTS:
        write_page(out, PAGE)
        console.print(f"written: {PAGE}")
    return int(options.strict and bool(report.missed))


if __name__ == "__main__":
    sys.exit(main())
