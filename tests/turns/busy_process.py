"""A process that sends messages to one session and says what became of each. Run by the tests of `if_busy`.

The model's reply takes a moment. Each line that is printed says the key, how it ended and the reply: the sender has its
answer in hand, or knows that it was refused.
"""

from __future__ import annotations

import sys
import time

import holdfast
from holdfast import CallModel, Done
from holdfast.errors import ActorBusy, NotOwner, StaleEpoch


def send(hf: holdfast.Holdfast, session: str, key: str, if_busy: str) -> str:
    """One message; gives what became of it."""
    for _ in range(200):
        try:
            with hf.session(session).turn(key, key=key, if_busy=if_busy) as turn:
                for step in turn:
                    if isinstance(step, CallModel):
                        heard = [one["content"] for one in step.pack.to_openai()["messages"] if one["role"] == "user"]
                        time.sleep(0.002)
                        step.done(f"heard {' '.join(heard)}")
                    elif isinstance(step, Done):
                        return f"{step.status} {step.text}"
        except (ActorBusy, StaleEpoch, NotOwner) as error:  # Others took over from a process that slept too long.
            if if_busy == "reject" and isinstance(error, ActorBusy):
                return "rejected"
            time.sleep(0.01)
    return "never"


def main() -> None:
    """busy_process PATH NAME COUNT LEASE_MS; each line that it reads is an if_busy, which is the session as well."""
    path, name, count, lease = sys.argv[1:]
    with holdfast.open(path, settings=holdfast.Settings(lease_ms=int(lease)), durability="fast") as hf:
        print("ready", flush=True)
        for line in sys.stdin:
            if_busy = line.strip()
            for number in range(int(count)):
                key = f"{name}-{number}"
                print(key, send(hf, if_busy, key, if_busy), flush=True)
            print("end", flush=True)


if __name__ == "__main__":
    main()
