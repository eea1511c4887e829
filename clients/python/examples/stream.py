"""Streams the steps of a task, and goes on after the last one if the connection is cut."""

import reasond

with reasond.Client.from_env() as client:
    stream = client.reason_iterations("What is 15% of 240?", keep_running=True, reconnect=True)
    for event in stream:
        print(event.sequence, event.WhichOneof("event"))
    print(reasond.FinishReason.Name(stream.result.finish_reason), stream.result.answer)
