"""What files mean: logs, traces, topologies, and rules for NCCL's tuner drawn from predictions."""
