"""Which layout to run: `search(model, cluster, workload, space=…)` prices all of them.

::

    space ──► question ──► tasks ──► evaluate ──► parts ──► found
    (axes)    (model,      (blocks   (rules,      (join in  (best, front,
               cluster)     of cells) memory,      any       reasons)
                                      estimate)    order)

`engines` says where tasks run (this process, several, Ray), `store` keeps what they find on disk;
`rules` says which cells are left out and why, `objectives` what makes one better than another.
"""
