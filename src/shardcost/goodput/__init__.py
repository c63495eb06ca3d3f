"""Whole training runs: what failures, checkpoints and restarts leave of the time; days and money.

::

    checkpoints   closed forms: expected time with failures, the interval that loses least
    run           `training_run`: days, GPU-hours, money and energy of an estimate's step;
                  `published`: failure rates and storage of fleets, its defaults
"""

from shardcost.goodput.run import TrainingRun, training_run

__all__ = ["TrainingRun", "training_run"]
