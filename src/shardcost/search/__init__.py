"""Which layout to run: `search(model, cluster, workload, space=…)` prices all of them.

::

    space ──► question ──► tasks ──► evaluate ──► parts ──► found
    (axes)    (model,      (blocks   (rules,      (join in  (best, front,
               cluster)     of cells) memory,      any       reasons)
                                      estimate)    order)

`grid` lays a block's cells out as arrays, `times` prices them, `cutoff` says by lower bounds which
need no exact price, `objectives` says what makes one better than another.
`engines` says where tasks run (this process, several, Ray), `store` keeps what they find on disk as
a `table`, under its `fingerprint`. `confidence` says how surely limits hold, `batches` looks
between the batches given. `plan` has a search together with what one asks next: why the second
lost, what more of a resource would bring, how steady the order is, what to relax.
"""
