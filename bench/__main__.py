"""``python -m bench``: measure, print, write JSON."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench import measures, peers, report, wrk
from bench.figures import Sample
from bench.loops import loop_name
from bench.processes import StartError, raise_descriptor_limit, scratch_folder
from bench.proxies import CACHE, DEFAULT_PEERS, PROXIES, REPOSITORY, SUBJECT, steelyard_path, why_not_steelyard
from bench.run import Clock, Entrant, take

LIMIT_MISSED = 3
RESULTS = REPOSITORY / "bench" / "results" / "latest.json"
QUICK_PEERS = ("nginx", "haproxy")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    known = ", ".join(name for name in PROXIES if name != SUBJECT)
    made = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure Steelyard beside other proxies, in one run and in alternating order.",
        epilog="Exit code: 0 measured, 2 wrong usage, 3 a limit was missed and --enforce was given.",
    )
    names = [measure.name for measure in measures.MEASURES] + ["decision"]
    made.add_argument(
        "--peers", help=f"all, none, or some of: {known} (default: all; with --quick: {','.join(QUICK_PEERS)})"
    )
    made.add_argument("--measures", default="all", help=f"all, or some of: {', '.join(names)}")
    made.add_argument("--without-steelyard", action="store_true", help="measure only the peers")
    made.add_argument("--quick", action="store_true", help="a coarse run of less than 90 seconds, for CI")
    made.add_argument("--rounds", type=int, metavar="N", help="rounds of each measure (default: 5; --quick: 2)")
    made.add_argument("--streams", type=int, metavar="N", help="idle streams (default: 8000; --quick: 1000)")
    made.add_argument("--json", type=Path, metavar="FILE", default=RESULTS, help="default: bench/results/latest.json")
    made.add_argument("--enforce", action="store_true", help=f"exit {LIMIT_MISSED} if a must is not met")
    made.add_argument(
        "--install-peers", action="store_true", help="install the peers that are Python packages into --cache"
    )
    made.add_argument(
        "--cache", type=Path, metavar="FOLDER", default=CACHE, help="environments of peers (default: %(default)s)"
    )
    made.add_argument(
        "--profile", type=Path, metavar="FILE", help="instead: profile Steelyard under load, raw profiles to FILE"
    )
    return made


def chosen(text: str, all_names: tuple[str, ...], known: set[str], what: str) -> list[str]:
    """The names in `text` ('all', 'none' or separated by commas); SystemExit 2 names the wrong one."""
    if text in ("all", "none"):
        return list(all_names) if text == "all" else []
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            print(f"bench: no {what} {name!r}; there are: {', '.join(sorted(known))}", file=sys.stderr)
            raise SystemExit(2)
    return names


def enter(names: list[str], cache: Path, run: report.Run) -> list[Entrant]:
    """The proxies that are on this machine; the others go into ``run.missing``."""
    entrants = []
    for name in names:
        proxy = PROXIES[name]
        program = proxy.find(cache)
        if program is None:
            if name == SUBJECT:
                reason = f"cannot run `python -m steelyard serve`: {why_not_steelyard() or 'it could not a moment ago'}"
            elif name in peers.PACKAGES:
                reason = "not installed (python -m bench --install-peers)"
            else:
                reason = "not installed (a package of the operating system)"
            run.missing.setdefault(name, reason)
            continue
        run.versions[name] = proxy.version(program)
        entrants.append(Entrant(proxy, program))
    return entrants


def decisions(pace: measures.Pace, run: report.Run) -> None:
    """The decision time of the core, taken in a process of its own."""
    path = os.pathsep.join([str(REPOSITORY), steelyard_path().get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))])
    seconds = 0.5 if pace.rounds >= measures.FULL.rounds else 0.2
    command = [sys.executable, "-m", "bench.decision", f"--rounds={pace.rounds}", f"--seconds={seconds}"]
    try:
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        run.results.add(Sample("decision", SUBJECT, 0, problem="took more than 60 s"))
        return
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no message"]
        run.results.add(Sample("decision", SUBJECT, 0, problem=said[-1]))
        return
    for number, figures in enumerate(json.loads(done.stdout)):
        run.results.add(Sample("decision", SUBJECT, number, figures))


def pace_of(options: argparse.Namespace, descriptors: int) -> measures.Pace:
    """The pace that the options ask for, within what the descriptor limit of this machine allows."""
    pace = measures.QUICK if options.quick else measures.FULL
    if options.rounds is not None:
        rounds = max(1, options.rounds)
        pace = replace(pace, rounds=rounds, idle_rounds=min(rounds, pace.idle_rounds))
    streams = options.streams if options.streams is not None else pace.idle_streams
    # A proxy needs two descriptors a stream, and some for itself.
    return replace(pace, idle_streams=max(1, min(streams, (descriptors - 1000) // 2)))


def main(arguments: list[str] | None = None) -> int:
    """Run and return the exit code."""
    options = parser().parse_args(arguments)
    known = {name for name in PROXIES if name != SUBJECT}
    default = ",".join(QUICK_PEERS) if options.quick else "all"
    names = chosen(options.peers or default, DEFAULT_PEERS, known, "peer")
    all_measures = (*(measure.name for measure in measures.MEASURES), "decision")
    wanted = chosen(options.measures, all_measures, set(all_measures), "measure")
    subjects = names if options.without_steelyard else [SUBJECT, *names]
    _end_on_signals()
    # `serve` takes options from the environment; its defaults are what is measured.
    for name in [name for name in os.environ if name.startswith("STEELYARD_")]:
        del os.environ[name]
    console = Console(stderr=True)
    run = report.Run(pace=pace_of(options, raise_descriptor_limit()), machine=report.machine_facts())
    run.machine |= {"load_generator": f"wrk and {loop_name()}" if wrk.find() else loop_name()}
    if options.install_peers:
        for name in names:
            if name in peers.PACKAGES and PROXIES[name].find(options.cache) is None:
                console.print(f"installing {name} into {options.cache / name}")
                failed = peers.install(name, options.cache)
                if failed:
                    run.missing[name] = f"could not be installed: {failed}"
    if os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        console.print(f"the machine is not idle (load average {os.getloadavg()[0]:.1f}): expect noise", style="yellow")
    entrants = enter(subjects, options.cache, run)
    begin = time.monotonic()
    clock = Clock(run.pace.limit_seconds)
    with scratch_folder() as folder:
        if options.profile:
            return _profile(entrants, folder, options.profile)
        for measure in measures.MEASURES:
            if measure.name in wanted and entrants:
                try:
                    run.configs[measure.name] = take(
                        measure, entrants, run.pace, folder, clock, run.results, console.print
                    )
                except StartError as error:
                    run.results.add(Sample(measure.name, "all", 0, problem=str(error)))
        if "decision" in wanted and not options.without_steelyard:
            console.print("decision")
            decisions(run.pace, run)
    run.seconds = time.monotonic() - begin
    run.machine["load_average_after"] = os.getloadavg()
    # Piped output has no width of its own: wide enough for the widest table.
    report.show(run, Console() if sys.stdout.isatty() else Console(width=120))
    report.write(run, options.json)
    console.print(f"written: {options.json}")
    return LIMIT_MISSED if options.enforce and not report.kept(run) else 0


def _end_on_signals() -> None:
    # SIGTERM takes the way of ctrl-C, which the event loops turn into a cancellation: an exception raised out of
    # a signal handler would be swallowed by whatever callback it hits. Shells start background jobs with SIGINT
    # ignored, so it is set here, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def _profile(entrants: list[Entrant], folder: Path, target: Path) -> int:
    from bench.profiling import profile

    for entrant in entrants:
        if entrant.proxy.name == SUBJECT:
            print(profile(entrant, folder, target))
            return 0
    print("bench: cannot run `python -m steelyard serve`, so there is nothing to profile", file=sys.stderr)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
