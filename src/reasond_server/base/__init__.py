"""What every room may use and nothing of which knows reasoning: time, addresses, plug-ins, tasks of asyncio."""
