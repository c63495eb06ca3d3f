"""A script of somebody who uses shardcost and a type checker: `tests/test_release.py` runs both."""

from typing import assert_type

import numpy as np

import shardcost
from shardcost import (
    Candidate,
    Cluster,
    CollectiveTime,
    Decode,
    Deployment,
    Engine,
    Estimate,
    Found,
    Layout,
    Lengths,
    Load,
    Model,
    Pool,
    Requests,
    Software,
    Train,
    collective_time,
    estimate,
    search,
    simulate,
    tensor_parallel_allreduce_cost,
)

model = Model.named("llama3-8b")
assert_type(model, Model)
cluster = Cluster.named("h100_sxm", network="ib_8x400g")
assert_type(cluster, Cluster)
software = Software.named("vllm")
assert_type(software, Software)

found = estimate(model, cluster, Layout(tp=8), Decode(batch=64, context_tokens=4096))
assert_type(found, Estimate)
by_name = estimate("llama3-8b", "h100_sxm", Layout(tp=8), Train(global_batch=8, sequence_length=64))
assert_type(by_name, Estimate)

plan = search(model, cluster, Decode(batch=64, context_tokens=4096), space={"gpus": 8})
assert_type(plan, Found)
assert_type(plan.best[0], Candidate)
assert_type(plan.best[0].layout, Layout)
assert_type(plan.best[0].estimate, Estimate)
assert_type(plan.feasible, int)

ring = collective_time("all_reduce", 2**20, cluster, 8)
assert_type(ring, CollectiveTime)

served = Deployment(Pool(Engine(model, cluster, Layout(), software), workers=2))
requests = Requests(rate_per_s=4.0, prompt=Lengths(mean=256), output=Lengths(mean=32), count=50)
load = simulate(served, requests)
assert_type(load, Load)
assert_type(load.ttft_s.mean, float)

front_door = tensor_parallel_allreduce_cost(8192, 4096, 1, 8, 80, 2, 450.0)
assert_type(front_door["total_comm_time_ms"], float)
assert_type(shardcost.__version__, str)


def slowest(results: list[Estimate]) -> Estimate:
    """Return the slowest of some results."""
    return max(results, key=lambda each: float(np.max(each.time_s)))
