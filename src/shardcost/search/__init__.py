"""Which layout to run: `search(model, cluster, workload, space=…)` prices all of them.

::

    space ──► question ──► tasks ──► evaluate ──► parts ──► found
    (axes)    (model,      (blocks   (rules,      (join in  (best, front,
               cluster)     of cells) memory,      any       reasons)
                                      estimate)    order)

`rules` says which cells are left out and why, `objectives` what makes one better than another.
"""
