"""A deployment under load: requests, arrivals, batching, queues, pools of workers.

::

    Requests ──► stream of arrivals ─┐
    Deployment ──► StepTimes ────────┼─► simulate     (event by event)        ─► Load
                 (seconds of a step, │
                  by `estimate`)     └─► steady       (closed form on arrays) ─► Steady
"""
