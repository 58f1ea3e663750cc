"""Streams of agents, and the token of the node that they speak for."""

from collections.abc import AsyncIterator

import pytest
from asgiref.sync import sync_to_async

from gpupool import services
from gpupool.leases.default import close_shared_store
from tenants.actor import SYSTEM
from tests.gpupool.stream.agents import Agent, Connect


@pytest.fixture
async def connect(transactional_db: None) -> AsyncIterator[Connect]:
    agents: list[Agent] = []

    async def connected(token: str) -> Agent:
        agent = Agent(token)
        assert await agent.connect()
        agents.append(agent)
        return agent

    yield connected
    for agent in agents:
        await agent.leave()
    await close_shared_store()


@pytest.fixture
async def token(transactional_db: None) -> str:
    return (await sync_to_async(services.create_node)("node-1", actor=SYSTEM)).token
