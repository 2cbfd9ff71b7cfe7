"""The command: its steps, and where their results go."""

import sys
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

import specprefill_cli
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.files import write_whole
from specprefill_cli.lab.benchmarks.shapes import shape_pair
from specprefill_cli.lab.commands.options import make_folder, whole_numbers
from specprefill_cli.lab.gpu_check.report import report
from specprefill_cli.lab.gpu_check.steps import Step, run_steps
from specprefill_cli.lab.tables import Row

TESTS = Path(specprefill_cli.__file__).parents[1] / "tests" / "models" / "test_device.py"
# Time of a step in addition to its prompt's, in prompt tokens; then the longest prompt that is measured more than once.
FIXED_SHARE = 16_384
REPEATED = 32_768
DECODE_LENGTH, DECODING = 2_048, "--tasks quote --max-new-tokens 48 --speculate auto,4 --repeat 1"
# Defaults with a GPU, and without a GPU, where the check only shows that it works: sizes, lengths, minutes.
ON_GPU = "qwen2.5-0.5b:qwen2.5-32b", "8192,32768,65536,131072", 8.0
ON_CPU = "tiny:tiny", "1024", 2.0
PROBE = "-m", "specprefill_cli.lab.gpu_check.probes"


def check(
    out: Annotated[Path, typer.Option(help="Folder for the report, the results and the logs; made if need be.")] = Path(
        "gpu-check"
    ),
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Time for all steps; without it 8, or 2 where there is no GPU.")
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            help="DRAFT:TARGET, the sizes to measure with random weights, as in bench prefill; without it those of 0.5 and "
            "32 billion parameters, or tiny:tiny where there is no GPU."
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(help="Prompt lengths in tokens; without it 8,192 to 131,072, or 1,024 where there is no GPU."),
    ] = None,
) -> None:
    """Check this machine and measure on it: OUT/report.md and OUT/results.json are rewritten after every step.

    On a machine without a GPU it takes small sizes, and shows that the check itself works.
    """
    import torch

    usual_shapes, usual_lengths, usual_minutes = ON_GPU if torch.cuda.is_available() else ON_CPU
    shapes, lengths, minutes = shapes or usual_shapes, lengths or usual_lengths, minutes or usual_minutes
    try:
        shape_pair(shapes)
        sizes = whole_numbers(lengths, "--lengths")
        make_folder(out / "logs", "--out")
        steps = all_steps(shapes, sizes)
        title = f"GPU check: {shapes}"
        results = run_steps(steps, out / "logs", 60 * minutes, lambda done: write(out, title, done, len(steps)))
    except SpecprefillError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        print(f"gpu_check: interrupted; {out} has the results so far", file=sys.stderr)
        raise typer.Exit(130) from None
    print(out / "report.md")
    if any(result["state"].startswith(("failed", "stopped")) for result in results):
        raise typer.Exit(1)


def all_steps(shapes: str, lengths: Sequence[int]) -> list[Step]:
    """All steps; the quick and most informative steps come first."""
    import torch

    shortest, gpus = min(lengths), torch.cuda.device_count()
    # A power of two divides the key-value heads of most models, up to 8.
    ranks = min(8, 1 << (gpus or 2).bit_length() - 1)
    tests = ("-m", "pytest", "-p", "no:cacheprovider", str(TESTS), "--device", "auto", "--dtype")
    return [
        Step(name="environment", arguments=(*PROBE, "environment"), share=FIXED_SHARE),
        Step(name="attention kernels", arguments=(*PROBE, "kernels", shapes), share=FIXED_SHARE),
        *(
            Step(
                name=f"tests in {dtype}",
                arguments=(*tests, dtype),
                share=2 * FIXED_SHARE,
                missing="" if TESTS.is_file() else "no tests in this installation",
            )
            for dtype in ("float32", "bfloat16")
        ),
        Step(
            name="with and without cuDNN",
            arguments=(*PROBE, "cudnn", shapes, str(shortest)),
            share=2 * (FIXED_SHARE + shortest),
        ),
        Step(
            name="synchronisations",
            arguments=(*PROBE, "synchronisations", shapes, str(shortest)),
            share=FIXED_SHARE + shortest,
            missing="" if torch.cuda.is_available() else "needs a CUDA device",
        ),
        Step(
            name="decoding",
            arguments=bench("decode", shapes, f"{DECODING} --length {min(shortest, DECODE_LENGTH)}"),
            share=3 * FIXED_SHARE,
        ),
        # A step for each length: the longest may not fit, and must not end the others.
        *(
            Step(
                name=f"prefill of {length} tokens",
                arguments=bench_prefill(length, shapes, f"--keep 0.1,0.2 --repeat {2 if length <= REPEATED else 1}"),
                share=FIXED_SHARE + length,
            )
            for length in lengths
        ),
        # Over all GPUs; without a GPU, over two processes.
        Step(
            name="tensor parallelism",
            arguments=bench_prefill(shortest, shapes, f"--keep 0.1 --repeat 1 --tensor-parallel {ranks}"),
            share=2 * FIXED_SHARE + shortest,
            missing="there is one GPU" if gpus == 1 else "",
        ),
    ]


def bench(command: str, shapes: str, options: str) -> tuple[str, ...]:
    """The arguments of a `bench` command with random weights and JSON output."""
    fixed = ("-m", "specprefill_cli", "bench", command, "--shapes", shapes)
    return (*fixed, *options.split(), "--json", "--quiet")


def bench_prefill(length: int, shapes: str, options: str) -> tuple[str, ...]:
    """The arguments that measure TTFT of `full` and `select` at a prompt length."""
    return bench("prefill", shapes, f"--lengths {length} --no-baseline {options}")


def write(out: Path, title: str, results: Sequence[Row], steps: int) -> None:
    """Write the report and the results so far, and print how the last step ended."""
    write_whole(out / "results.json", dumps(results, indent=1))
    write_whole(out / "report.md", report(title, results, steps))
    last = results[-1]
    print(f"{len(results)}/{steps} {last['name']}: {last['state']} ({last['seconds']:,.0f} s)", file=sys.stderr)


if __name__ == "__main__":
    typer.run(check)
