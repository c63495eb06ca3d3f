"""The KV cache of a prompt on its way from a prefill worker to a decode worker."""

from __future__ import annotations

from typing import Any

from shardcost.load.deployment import Deployment


def transfer_s(deployment: Deployment, prompt_tokens: Any) -> Any:
    """Return the seconds that the cache of a prompt needs.

    Args:
        deployment: Its two pools.
        prompt_tokens: Of the prompt.
    """
    return 0.0 * prompt_tokens
