import subprocess
from typing import Any

from demo.upstreams.working_model import (
    PRIMES_TASK,
    REPORT_TASK,
    Said,
    ToolCall,
    next_turn,
    primes_in,
)

FIFTY = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97]
FIFTY += [101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173, 179, 181, 191]
FIFTY += [193, 197, 199, 211, 223, 227, 229]


def _result(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": text}]}


def test_its_answer_comes_from_what_the_tool_printed() -> None:
    """A model that knew the result would prove nothing about the sandbox that computes it."""
    asked = [{"role": "user", "content": f"Please: {PRIMES_TASK}"}]
    call = next_turn(asked, ["Read", "Bash"])
    assert isinstance(call, ToolCall) and call.tool == "Bash"
    printed = subprocess.run(["sh", "-c", call.command], capture_output=True, text=True, check=True).stdout
    assert primes_in(printed) == FIFTY
    said = next_turn([*asked, _result(printed)], ["Bash"])
    assert isinstance(said, Said) and said.text.endswith(" ".join(map(str, FIFTY)))
    empty = next_turn([*asked, _result("python3: not found")], ["Bash"])
    assert isinstance(empty, Said) and "2 3 5" not in empty.text


def test_it_writes_a_summary_of_what_it_read() -> None:
    """Three commands, the last made of what the second one printed."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": REPORT_TASK}]}]
    first = next_turn(messages, ["execute"])
    assert isinstance(first, ToolCall) and first.tool == "execute" and "report.pdf" in first.command
    messages.append(_result("1 2 3 report.txt"))
    second = next_turn(messages, ["execute"])
    assert isinstance(second, ToolCall) and "grep" in second.command
    messages.append(_result("  Chapter 1: copper\nFinding: it's 7 'units'"))
    third = next_turn(messages, ["execute"])
    assert isinstance(third, ToolCall)
    assert "## Chapter 1: copper" in third.command and "units" in third.command
    messages.append(_result("5 summary.md"))
    assert next_turn(messages, ["execute"]) == Said("The summary is in summary.md (5 summary.md).")


def test_without_a_shell_it_says_so_and_other_talk_is_not_its_business() -> None:
    """None leaves the answer to the plain stand-in."""
    asked = [{"role": "user", "content": PRIMES_TASK}]
    assert next_turn(asked, ["Read"]) == Said("I have no tool that runs commands.")
    assert next_turn([{"role": "user", "content": "hello"}], ["Bash"]) is None


def test_one_conversation_goes_on_with_another_task() -> None:
    """What the tools printed for the first is none of the second's."""
    messages = [
        {"role": "user", "content": PRIMES_TASK},
        _result("2 3 5"),
        {"role": "assistant", "content": [{"type": "text", "text": "The first 50 primes: "}]},
        {"role": "user", "content": REPORT_TASK},
    ]
    call = next_turn(messages, ["Bash"])
    assert isinstance(call, ToolCall) and "report.pdf" in call.command
