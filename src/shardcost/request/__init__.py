"""What is asked, by the names of the command line's options: from their values to the nouns.

The command line and the page ask the same questions in the same words. `given` is any object that
has an attribute for each option (`argparse.Namespace` is one): its text, True for a flag that is
set, None where it is left out. Where models and clusters are looked for differs (a path on the
command line, a file's content on the page) and comes as a `Finder`.

::

    given ──► layouts, workloads ──► estimates    (one layout, or one for each value that varies)
          └─► searches, collectives               (arguments of `search`, of `collective_time`)
"""
