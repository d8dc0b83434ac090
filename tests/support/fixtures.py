"""Types of the fixtures that hand out functions."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import nn

from shoal.algorithms.client import Client
from shoal.algorithms.context import Context
from shoal.engine.rounds.server import Server
from shoal.storage.shards.view import View

Check = Callable[..., None]
CountsOf = Callable[..., np.ndarray]
Keys = Mapping[str, Any]
Make = Callable[..., Any]
MakeClient = Callable[..., Client]
MakeContext = Callable[..., Context]
MakeView = Callable[..., View]
ModuleOf = Callable[..., nn.Module]
PlainClients = Callable[..., list[Any]]
Start = Callable[..., Server]
Views = Callable[..., list[View]]
