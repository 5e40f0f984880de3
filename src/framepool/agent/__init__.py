"""Agents, the things that turn them, and their timers."""

from framepool.agent.agent import Agent, AgentTerminated, CompositeAgent, Invoker, Runner, State, log_error
from framepool.agent.idle import Backoff, BusySpin, IdleStrategy, Sleeping
from framepool.agent.priority import stand_back
from framepool.agent.timers import Timer, Timers

__all__ = [
    "Agent",
    "AgentTerminated",
    "Backoff",
    "BusySpin",
    "CompositeAgent",
    "IdleStrategy",
    "Invoker",
    "Runner",
    "Sleeping",
    "State",
    "Timer",
    "Timers",
    "log_error",
    "stand_back",
]
