"""The page and the API: the answers of the commands over HTTP, for one person or a team.

A view like the others: it asks (`shardcost.request`) and shows what `shardcost.report` makes of
the answers. It computes nothing. What comes over the network is never trusted::

    request ──► guard (size, time, origin) ──► asks (fields) ──► answers ──► report ──► JSON
                                                     └──► jobs (searches, files: other processes)

The page itself is in `static/`: plain files, nothing from elsewhere.
"""
