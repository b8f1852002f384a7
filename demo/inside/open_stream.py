"""Runs INSIDE the sandbox: a long streamed answer. Says when it began, and when and how it ended."""

import json
import sys
import time

import httpx
import openai
from openai.types.chat import ChatCompletionUserMessageParam

asked = json.loads(sys.stdin.readline())
client = openai.OpenAI(max_retries=0, timeout=60)
words, told, how = 0, False, "complete"
try:
    question: ChatCompletionUserMessageParam = {"role": "user", "content": asked["say"]}
    stream = client.chat.completions.create(model="gpt-5", messages=[question], stream=True)
    for chunk in stream:
        words += bool(chunk.choices and chunk.choices[0].delta.content)
        if words == 3 and not told:
            told = True
            print(json.dumps({"streaming": True}), flush=True)
except (openai.APIError, httpx.HTTPError) as error:
    how = type(error).__name__
print(json.dumps({"ended": time.time(), "words": words, "how": how}), flush=True)
sys.stdin.read()
