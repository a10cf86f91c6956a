"""What a study costs: images trained on, over a measured rate; and what a started one will still take."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from fedproc_mpi.config import Config
from fedproc_mpi.errors import UserError
from fedproc_mpi.studies.plan import Study

# Seconds of a round against FedAvg's: results/algorithms_cifar10.md.
FACTORS = {"fedprox": 1.07, "scaffold": 1.12, "fedproc": 1.19, "solo": 1.23, "fedproto": 1.34, "moon": 1.77}
RATES = {"core": "images_per_core_second", "GPU": "images_per_gpu_second"}


def estimate(study: Study) -> str:
    """Core-hours, and GPU-hours where a rate was measured, in words.

    `[cost]` of the study's file: samples (of all clients), images_per_core_second, images_per_gpu_second,
    and measured (where).
    """
    cost = study.cost
    try:
        images = sum(_images(run.config, float(cost["samples"])) for run in study.runs)
        rates = {unit: float(cost[key]) for unit, key in RATES.items() if key in cost}
    except KeyError:
        return "no estimate: the study's file has no [cost] with samples and a rate"
    except (TypeError, ValueError) as error:
        raise UserError(f"[cost]: {error}") from error
    hours = [f"{images / rate / 3600:,.1f} {unit}-hours" for unit, rate in rates.items()]
    missing = [f"{unit}-hours not measured" for unit in RATES if unit not in rates]
    return f"about {', '.join([*hours, *missing])} ({cost.get('measured', 'rate of the study file')})"


def _images(config: Config, samples: float) -> float:
    """Images trained on, as FedAvg's images are counted."""
    passes = config.rounds * config.local_epochs * config.sample_rate
    return samples * passes * FACTORS.get(config.algorithm, 1.0)


def remaining_seconds(rounds: Mapping[str, Sequence[float]], missing: Mapping[str, int]) -> float | None:
    """Seconds for the missing rounds. None where no round was run yet.

    rounds: seconds of the rounds so far, by what is alike (the algorithm). missing: rounds still to run.
    """
    typical = {kind: median(seconds) for kind, seconds in rounds.items() if seconds}
    if not typical:
        return None
    mean = fmean(typical.values())
    return sum(count * typical.get(kind, mean) for kind, count in missing.items())


def in_words(seconds: float | None) -> str:
    """`2 h 5 min`, for people."""
    if seconds is None:
        return "not known yet"
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
