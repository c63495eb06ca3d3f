"""The page and the API: the results of the commands over HTTP, for one person or a team.

The server computes nothing itself and trusts no request::

    request ──► guard ──► app (routes) ──► dispatcher ──► pool ──► worker ──► answers ──► JSON
              size, time,   fields,        cache,         processes            `shardcost.request`,
              origin        errors         searches                            `shardcost.report`

The page itself is in `static/`: plain files, nothing from elsewhere.
"""
