"""The coordinator's decisions over plain data: no context, asyncio, logging or clock."""
