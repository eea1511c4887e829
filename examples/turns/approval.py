"""A person approves what the server is about to do: `python approval.py "Tell the current time."`.

The server needs `[turns] needs_approval = ["current_time"]`; REASOND_TARGET and REASOND_TOKEN lead to it.
"""

import sys

import reasond


def approve(pending: reasond.PendingCall) -> bool | str:
    """Ask on the terminal: y approves, anything else refuses, and the model is told what was typed."""
    said = input(f"{pending.call.tool} {pending.call.arguments_json} - approve? [y or why not] ").strip()
    return True if said.lower() in {"y", "yes"} else said


def main() -> None:
    with reasond.Client.from_env() as client:
        result = client.turn(sys.argv[1], approve=approve)
    print(result.answer)


if __name__ == "__main__":
    main()
