"""A turn that one process starts and another finishes.

`python resume.py start` prints the id of a turn that waits for a tool; `python resume.py finish ID` goes on with it,
hours later or on another machine.
"""

import sys

import reasond


@reasond.client_tool
def stock_level(article: str) -> int:
    """Tells how many pieces of an article are in stock.

    Args:
        article: The number of the article.
    """
    return {"A-17": 40}.get(article, 0)


def start(client: reasond.Client) -> str:
    """Start a turn and leave it at its first hand-off; return its id."""
    source = reasond.TurnStart(message='Tell the stock level of "A-17".', client_tools=[stock_level.describe()])
    leg = client.run_turn(source, request_id="stock-of-monday")
    return leg.turn.turn_id


def finish(client: reasond.Client, turn_id: str) -> str:
    """Go on with a turn to its end; one that has ended is not run again."""
    return client.resume_turn(turn_id, tools=[stock_level]).answer


def main() -> None:
    with reasond.Client.from_env() as client:
        print(start(client) if sys.argv[1] == "start" else finish(client, sys.argv[2]))


if __name__ == "__main__":
    main()
