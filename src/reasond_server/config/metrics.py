"""The settings of [metrics]: where what was counted can be read, and by whom."""

from __future__ import annotations

from pydantic import Field

from reasond_server.config.sections import Address, Section


class MetricsSettings(Section):
    """Where Prometheus reads; nothing is counted where it can read nowhere."""

    address: Address = Field(
        default="",
        description="Where /metrics is served apart from everything else, host:port, such as 127.0.0.1:9464; port 0 "
        "picks a free one; empty: nowhere. On a loopback address nobody needs a token.",
    )
    on_http: bool = Field(
        default=True,
        description="Whether server.http_address serves /metrics as well, to tokens with the permission metrics:read.",
    )
    allow_anonymous: bool = Field(
        default=False,
        description="Whether metrics.address needs no token where other machines can reach it; for networks that let "
        "only Prometheus through.",
    )
