"""Types of the fixtures that hand out functions."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import nn

from shoal.algorithms.client import Client
from shoal.algorithms.context import Context
from shoal.engine.config.config import Config
from shoal.engine.messages.job import Job
from shoal.engine.rounds.server import Server
from shoal.storage.shards.view import View

Check = Callable[..., None]
Configure = Callable[..., Config]
CountsOf = Callable[..., np.ndarray]
Keys = Mapping[str, Any]
Make = Callable[..., Any]
MakeClient = Callable[..., Client]
MakeContext = Callable[..., Context]
MakeJob = Callable[..., Job]
MakeView = Callable[..., View]
ModuleOf = Callable[..., nn.Module]
PlainClients = Callable[..., list[Any]]
Refused = Callable[..., str]
Start = Callable[..., Server]
Status = Callable[..., int]
Views = Callable[..., list[View]]
