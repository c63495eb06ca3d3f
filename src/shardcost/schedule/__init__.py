"""What hides behind what: overlap, pipeline bubbles, and the event timeline of a training step.

Everything here starts from work that is already priced in seconds (`shardcost.schedule.work`). The
closed forms run on numbers and arrays alike; the timeline keeps the books event by event for one
step, and the closed forms are held to it.
"""
