"""An agent program for a sandbox that has no better one: standard library only, the API's key from the
environment. Tasks come from standard input as JSON lines, results go out the same way, as Claude Code has it.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

URL = "https://api.anthropic.com/v1/messages"
TOOL = {
    "name": "Bash",
    "description": "Run a command",
    "input_schema": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    },
}
MOST_TURNS = 20
COMMAND_SECONDS = 60


def think(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    """What the model says next."""
    asked = {"model": "claude-sonnet-5", "max_tokens": 4096, "tools": [TOOL], "messages": messages}
    headers = {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-api-key": os.environ["ANTHROPIC_API_KEY"],  # noqa: TID251 - the sandbox's own
    }
    request = urllib.request.Request(URL, json.dumps(asked).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - a constant
        content: list[dict[str, object]] = json.load(answer)["content"]
        return content


def run(command: str) -> str:
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, errors="replace", timeout=COMMAND_SECONDS
    )
    return done.stdout + done.stderr


def work(messages: list[dict[str, object]]) -> str:
    """Do what the last message asks; what the model says in the end."""
    for _ in range(MOST_TURNS):
        content = think(messages)
        messages.append({"role": "assistant", "content": content})
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            return "".join(str(block.get("text", "")) for block in content)
        results = []
        for call in calls:
            given = call["input"]
            output = run(str(given["command"])) if isinstance(given, dict) else "no command"
            results.append({"type": "tool_result", "tool_use_id": call["id"], "content": output})
        messages.append({"role": "user", "content": results})
    return "It takes too long."


def main() -> None:
    messages: list[dict[str, object]] = []
    for line in sys.stdin:
        messages.append(json.loads(line)["message"])
        try:
            told = {"type": "result", "is_error": False, "result": work(messages)}
        except (urllib.error.URLError, subprocess.TimeoutExpired) as error:
            told = {"type": "result", "is_error": True, "result": str(error)}
        print(json.dumps(told), flush=True)


main()
