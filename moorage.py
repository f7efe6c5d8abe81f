"""The command line: replay, serve, record, scrub, import, diagnose, and run experiments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from engine.bad import BadInput, Unreadable
from engine.freed import keep_freed
from engine.knobs import Knobs
from engine.threads import wait_briefly

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
trace_app = typer.Typer(no_args_is_help=True, help="Look at traces.")
app.add_typer(trace_app, name="trace")
check_app = typer.Typer(
    no_args_is_help=True, help="Hold the caches to their gates on this machine."
)
app.add_typer(check_app, name="check")
model_app = typer.Typer(no_args_is_help=True, help="Look at models' sizes, and make small ones.")
app.add_typer(model_app, name="model")

Traces = Annotated[list[str], typer.Argument(help="files, folders, or `night` (the bundled one)")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="count bad lines and go on")]
Set = Annotated[list[str], typer.Option("--set", help="KEY=VALUE of the profile", metavar="K=V")]
ProfileName = Annotated[str, typer.Option("--profile", help="the board to pretend to be")]
SuffixDir = Annotated[
    Path | None, typer.Option(help="folder of a suffix store: tokens read and written before")
]
AdoptFrom = Annotated[
    list[str], typer.Option(help="a folder this tree lay in before", metavar="DIR")
]
SEED_MAX = 2**63 - 1
"""Torch takes no larger ones, and numpy none below zero."""
Seed = Annotated[
    int,
    typer.Option(min=0, max=SEED_MAX, help="decides accepted drafts, checks, interleavings"),
]
ModelSeed = Annotated[
    int, typer.Option(min=0, max=SEED_MAX, help="decides a random model's weights")
]
OnDrive = Annotated[
    Path,
    typer.Option("--dir", help="on the drive; a folder is made there and removed", readable=False),
]
ModelName = Annotated[
    str,
    typer.Option(help="witness, random, flash, third, or a checkpoint's folder", metavar="MODEL"),
]
GateModel = Annotated[
    str,
    typer.Option(
        help="of the gate: random, witness, flash, third, or a checkpoint's folder", metavar="MODEL"
    ),
]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16; else what the files say")]
Kv = Annotated[str, typer.Option(help="keys and values: as the model computes, or e4m3")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N")]
Threads = Annotated[int, typer.Option(min=0, help="of a product; 0 is what suits the model")]
Table = Annotated[str, typer.Option(help="an n-gram table is read warm (page cache) or cold")]
NoGraphs = Annotated[bool, typer.Option("--no-graphs", help="capture nothing on a device")]
TableCache = Annotated[int, typer.Option("--table-cache-mb", min=0, help="MiB a cold one keeps")]
Gib = Annotated[float, typer.Option(help="GiB of rows that are moved each time")]
Rounds = Annotated[int, typer.Option(help="how often, raw direct I/O beside it")]
GateSeed = Annotated[
    int, typer.Option("--seed", min=0, max=SEED_MAX, help="decides tokens, weights and bytes")
]


@app.command()
def replay(
    traces: Traces,
    model: ModelName = "witness",
    profile: ProfileName = "spark-27b",
    arrivals: Annotated[
        str, typer.Option(help="recorded (open loop), or closed: each waits for the one before")
    ] = "recorded",
    users: Annotated[int, typer.Option(min=1, help="traces replayed at once on one box")] = 1,
    settings: Set = [],  # noqa: B006 - typer reads the default, nobody writes to it
    verify: Annotated[str, typer.Option(help="all, none, or a percentage of the requests")] = "",
    out: Annotated[Path | None, typer.Option(help="folder for the report and the ledger")] = None,
    seed: Seed = 0,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            help="folder of the files on the drive, else simulated; they are as small as the"
            " model's rows, figures count the board's bytes"
        ),
    ] = None,
    adopt_from: AdoptFrom = [],  # noqa: B006
    restart: Annotated[
        list[str],
        typer.Option(
            help="the process stops as planned after so many requests, or percent of them",
            metavar="AFTER",
        ),
    ] = [],  # noqa: B006
    kill: Annotated[
        list[str],
        typer.Option(
            help="it ends there without a word: what memory holds is lost", metavar="AFTER"
        ),
    ] = [],  # noqa: B006
    suffix_dir: SuffixDir = None,
    suffix_scope: Annotated[str, typer.Option(help="of its tokens: all, or outputs")] = "all",
    suffix_readonly: Annotated[
        bool, typer.Option("--suffix-readonly", help="open it, and write nothing")
    ] = False,
    suffix_mb: Annotated[int, typer.Option(help="MiB it may take; then half is forgotten")] = 192,
    dtype: Dtype = "",
    kv: Kv = "model",
    device: Device = "cpu",
    threads: Threads = 0,
    table: Table = "warm",
    table_cache_mb: TableCache = 2_048,
    no_graphs: NoGraphs = False,
) -> None:
    """Replay recorded requests through the caches; print what was reused, re-read and verified."""
    from replay.commands import run_replay
    from replay.suffixes import flags_of

    suffix = flags_of(suffix_dir, suffix_scope, suffix_readonly, suffix_mb)
    status = run_replay(
        traces,
        model=model,
        profile=profile,
        arrivals=arrivals,
        users=users,
        settings=settings,
        verify=verify,
        out=out,
        seed=seed,
        skip_bad=skip_bad,
        as_json=as_json,
        cache_dir=cache_dir,
        adopt_from=adopt_from,
        restarts=restart,
        kills=kill,
        suffix=suffix,
        knobs=_knobs(dtype, kv, device, threads, table, table_cache_mb, no_graphs),
    )
    raise typer.Exit(status)


@app.command()
def doctor(
    traces: Traces,
    profile: ProfileName = "spark-27b",
    settings: Set = [],  # noqa: B006
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Say where a client's prompts part, what each cause costs, and what would mend it."""
    from replay.commands import run_doctor

    run_doctor(traces, profile=profile, settings=settings, skip_bad=skip_bad, as_json=as_json)


@app.command()
def profile(
    name: Annotated[str, typer.Argument(help="a profile's name")] = "spark-27b",
    settings: Set = [],  # noqa: B006
    prefill: Annotated[
        tuple[int, int] | None, typer.Option(help="seconds from FROM to TO tokens")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a board's numbers, its time model beside what was measured, and its worst case."""
    from replay.commands import run_profile

    run_profile(name, settings=settings, prefill=prefill, as_json=as_json)


@app.command()
def experiment(
    name: Annotated[str, typer.Argument(help="an experiment's name, or `list`")],
    traces: Annotated[
        list[str], typer.Option(help="files, folders or `night`, for those that replay traces")
    ] = [],  # noqa: B006
    profile: ProfileName = "spark-27b",
    settings: Set = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="folder for figures.json and plots")] = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
    suffix_dir: SuffixDir = None,
) -> None:
    """Run an incident again, and print what was measured then beside what it costs here."""
    from experiments.command import run_experiment

    status = run_experiment(
        name,
        traces=traces,
        profile=profile,
        settings=settings,
        out=out,
        skip_bad=skip_bad,
        as_json=as_json,
        suffix_dir=suffix_dir,
    )
    raise typer.Exit(status)


@app.command()
def fingerprint(
    places: Annotated[
        list[str], typer.Argument(help="folders of the disk tier, or records of theirs: one or two")
    ] = [],  # noqa: B006
    model: ModelName = "witness",
    profile: ProfileName = "spark-27b",
    settings: Set = [],  # noqa: B006
    seed: ModelSeed = 0,
    adopt_from: AdoptFrom = [],  # noqa: B006
    as_json: AsJson = False,
    dtype: Dtype = "",
    kv: Kv = "model",
    device: Device = "cpu",
    threads: Threads = 0,
    table: Table = "warm",
    table_cache_mb: TableCache = 2_048,
    no_graphs: NoGraphs = False,
) -> None:
    """Print what computes rows here; or what is apart between a folder's files and this, or two."""
    from replay.fingerprints import run_fingerprint

    run_fingerprint(
        places,
        model=model,
        profile=profile,
        settings=settings,
        seed=seed,
        adopt_from=adopt_from,
        as_json=as_json,
        knobs=_knobs(dtype, kv, device, threads, table, table_cache_mb, no_graphs),
    )


@app.command()
def record(
    upstream: Annotated[str, typer.Option(help="base URL of an OpenAI-compatible server")],
    out: Annotated[Path, typer.Option(help="file to append exchanges to")],
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on")] = 8001,
) -> None:
    """Stand in front of a server, pass everything through, and write down what was said."""
    from serve.record import record as run_record

    run_record(upstream, out, host=host, port=port)


@app.command()
def serve(
    model: Annotated[
        str,
        typer.Option(
            help="random or flash: small embedded ones; or a checkpoint's folder", metavar="MODEL"
        ),
    ] = "random",
    name: Annotated[str, typer.Option(help="the model's name, as clients ask for it")] = "",
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="a checkpoint's folder: its tokenizer and chat template", metavar="DIR"),
    ] = None,
    window: Annotated[
        int, typer.Option(min=0, help="tokens of the context; 0 is what suits the model")
    ] = 0,
    seed: ModelSeed = 0,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="port; 0 is any free one")] = 8_000,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            help="folder for what is kept over restarts: heads of prompts, conversations, settings,"
            " the journal; else all is in memory"
        ),
    ] = None,
    parallel: Annotated[
        int, typer.Option(min=0, max=64, help="side slots: requests served beside the main one")
    ] = 2,
    side_window: Annotated[int, typer.Option(help="tokens of a side slot's context")] = 32_768,
    token_file: Annotated[
        Path | None, typer.Option(help="file with the bearer token; else MOORAGE_TOKEN's, or none")
    ] = None,
    allow_host: Annotated[
        list[str], typer.Option(help="another name it may be called by", metavar="NAME")
    ] = [],  # noqa: B006
    allow_origin: Annotated[
        list[str], typer.Option(help="another page that may use it", metavar="ORIGIN")
    ] = [],  # noqa: B006
    script: Annotated[
        Path | None, typer.Option(help="answers to give instead of the model's own")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="folder to write every exchange to, text and all")
    ] = None,
    box_lock: Annotated[
        Path | None, typer.Option(help="file whose lock is held while a summary is written ahead")
    ] = None,
    response_cache: Annotated[
        int, typer.Option(min=0, help="MiB of answers that identical greedy requests get again")
    ] = 0,
    adopt_from: AdoptFrom = [],  # noqa: B006
    dtype: Dtype = "",
    kv: Kv = "model",
    device: Device = "cpu",
    threads: Threads = 0,
    table: Table = "warm",
    table_cache_mb: TableCache = 2_048,
    no_graphs: NoGraphs = False,
) -> None:
    """Serve chat over the caches: an OpenAI-compatible API, and a page that says what they do."""
    from serve.command import Flags, Setup
    from serve.command import serve as run_serve

    flags = Flags(
        model=model,
        name=name,
        tokenizer=tokenizer,
        window=window,
        seed=seed,
        host=host,
        port=port,
        token_file=token_file,
        allow_hosts=tuple(allow_host),
        allow_origins=tuple(allow_origin),
        script=script,
        record=record,
        box_lock=box_lock,
        knobs=_knobs(dtype, kv, device, threads, table, table_cache_mb, no_graphs),
    )
    setup = Setup(cache_dir, parallel, side_window, tuple(adopt_from), response_cache)
    run_serve(flags, setup)


@app.command()
def scrub(
    raw: Annotated[list[Path], typer.Argument(help="raw recordings, one conversation log each")],
    out: Annotated[Path, typer.Option(help="trace to write (.jsonl or .jsonl.zst)")],
    client: Annotated[
        list[str], typer.Option(help="a client's version, where headers don't tell", metavar="N=V")
    ] = [],  # noqa: B006
    licence: Annotated[str, typer.Option(help="under which the trace may be used")] = "",
    notes: Annotated[str, typer.Option(help="how it was made")] = "",
    skip_bad: SkipBad = False,
) -> None:
    """Turn raw recordings into one trace without text: structure, lengths and times only."""
    from replay.trace_commands import run_scrub

    run_scrub(raw, out, clients=client, licence=licence, notes=notes, skip_bad=skip_bad)


@app.command("import")
def import_(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help="weka, mooncake or bailian")],
    files: Annotated[list[Path], typer.Argument(help="files of that format")],
    out: Annotated[Path, typer.Option(help="trace to write, or a folder for several")],
    skip_bad: SkipBad = False,
) -> None:
    """Read a public trace and write it in our format."""
    from replay.trace_commands import run_import

    run_import(format_, files, out, skip_bad=skip_bad)


@app.command()
def export(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help="mooncake or bailian")],
    trace: Annotated[str, typer.Argument(help="a trace, or `night`")],
    out: Annotated[Path, typer.Option(help="file to write")],
    block: Annotated[int | None, typer.Option(min=1, help="tokens of a block")] = None,
) -> None:
    """Write a trace in a public format, with hash ids of any block size."""
    from replay.trace_commands import run_export

    run_export(format_, trace, out, block=block)


@trace_app.command("show")
def trace_show(traces: Traces, skip_bad: SkipBad = False, as_json: AsJson = False) -> None:
    """Print what a trace holds: requests, kinds, tokens, growth, and the ideal reuse."""
    from replay.trace_commands import run_show

    run_show(traces, skip_bad=skip_bad, as_json=as_json)


@check_app.command("disk")
def check_disk(
    directory: OnDrive,
    model: GateModel = "random",
    gib: Gib = 2.0,
    rounds: Rounds = 5,
    profile: ProfileName = "spark-27b",
    settings: Set = [],  # noqa: B006
    seed: GateSeed = 0,
    as_json: AsJson = False,
    dtype: Dtype = "",
    kv: Kv = "model",
    device: Device = "cpu",
    threads: Threads = 0,
    table: Table = "warm",
    table_cache_mb: TableCache = 2_048,
    no_graphs: NoGraphs = False,
) -> None:
    """Save heads to a real drive and bring them back: bits, then rates beside raw direct I/O."""
    from replay.check_disk import run_check_disk

    status = run_check_disk(
        directory,
        model=model,
        gib=gib,
        rounds=rounds,
        profile=profile,
        settings=settings,
        seed=seed,
        as_json=as_json,
        knobs=_knobs(dtype, kv, device, threads, table, table_cache_mb, no_graphs),
    )
    raise typer.Exit(status)


@check_app.command("spill")
def check_spill(
    directory: OnDrive,
    model: GateModel = "random",
    codec: Annotated[str, typer.Option(help="whose rates: raw, planes or both")] = "both",
    gib: Gib = 2.0,
    rounds: Rounds = 5,
    profile: ProfileName = "spark-27b",
    settings: Set = [],  # noqa: B006
    seed: GateSeed = 0,
    as_json: AsJson = False,
    dtype: Dtype = "",
    kv: Kv = "model",
    device: Device = "cpu",
    threads: Threads = 0,
    table: Table = "warm",
    table_cache_mb: TableCache = 2_048,
    no_graphs: NoGraphs = False,
) -> None:
    """Save conversations to a real drive and bring them back: bits, then rates beside raw I/O."""
    from replay.check_spill import run_check_spill

    status = run_check_spill(
        directory,
        model=model,
        codec=codec,
        gib=gib,
        rounds=rounds,
        profile=profile,
        settings=settings,
        seed=seed,
        as_json=as_json,
        knobs=_knobs(dtype, kv, device, threads, table, table_cache_mb, no_graphs),
    )
    raise typer.Exit(status)


@check_app.command("gates")
def check_gates(
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="where files go; else a temporary folder", readable=False),
    ] = None,
    model: GateModel = "random",
    profile: ProfileName = "spark-27b",
    settings: Set = [],  # noqa: B006
    seed: GateSeed = 0,
    as_json: AsJson = False,
    dtype: Dtype = "",
    kv: Kv = "model",
    device: Device = "cpu",
    threads: Threads = 0,
    table: Table = "warm",
    table_cache_mb: TableCache = 2_048,
    no_graphs: NoGraphs = False,
) -> None:
    """Bring conversations back by every tier, memory and files, each beside a cold prefill."""
    from replay.check_gates import run_check_gates

    status = run_check_gates(
        directory,
        model=model,
        profile=profile,
        settings=settings,
        seed=seed,
        as_json=as_json,
        knobs=_knobs(dtype, kv, device, threads, table, table_cache_mb, no_graphs),
    )
    raise typer.Exit(status)


@check_app.command("device")
def check_device(
    device: Device = "cpu",
    budget: Annotated[float, typer.Option(min=1, help="seconds it may take")] = 480.0,
    seed: GateSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Hold a device to its gates, its kernels to torch's code, and print its rates as a table."""
    from replay.check_device import run_check_device

    raise typer.Exit(run_check_device(device, as_json, budget, seed))


@model_app.command("show")
def model_show(
    name: Annotated[
        str, typer.Argument(metavar="MODEL", help="27b, flash-next, or a checkpoint's folder")
    ],
    dtype: Dtype = "",
    kv: Kv = "model",
    draft_layers: Annotated[
        int | None, typer.Option(min=1, help="of the 27b, as two drafters' rows are ten layers'")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what a model's weights, copies of state and rows take; nothing of it is allocated."""
    from engine.show_model import run_show

    run_show(name, dtype=dtype, kv=kv, draft_layers=draft_layers, as_json=as_json)


@model_app.command("make")
def model_make(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="qwen3_5, qwen3_5_text, qwen3_next or flash")
    ],
    out: Annotated[Path, typer.Option(help="folder to make")],
    size: Annotated[str, typer.Option(help="tiny, small, or of the hybrids 50m")] = "small",
    seed: ModelSeed = 0,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16")] = "float32",
    nvfp4: Annotated[bool, typer.Option("--nvfp4", help="pack the projections")] = False,
    shard_mb: Annotated[int, typer.Option(min=1, help="MiB of a file at most")] = 5_120,
) -> None:
    """Make a small random checkpoint, with the bundled tokenizer: to serve, replay and check."""
    from engine.make_model import make

    make(kind, out, size=size, seed=seed, dtype=dtype, nvfp4=nvfp4, shard_bytes=shard_mb << 20)


def _knobs(
    dtype: str,
    kv: str,
    device: str,
    threads: int,
    table: str,
    table_cache_mb: int,
    no_graphs: bool,
) -> Knobs:
    """How a model is run; raises BadInput."""
    return Knobs(dtype, kv, device, threads, table, table_cache_mb << 20, not no_graphs)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: bad input is one line and exit 2."""
    wait_briefly()
    keep_freed()
    try:
        app(args=arguments, standalone_mode=True)
    except (BadInput, Unreadable) as bad:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"moorage: {bad}", markup=False)
        sys.exit(2)
    except BrokenPipeError:
        # The reader of our output went away; there is nobody left to tell.
        sys.stderr.close()
        sys.exit(1)


if __name__ == "__main__":
    main()
